"""`kdist mirror` on the command line: wrong files, missing flows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kdist.cli.main import kdist
from kdist.cli.shared.client_settings import Clients
from kdist.cli.shared.connecting import ask_cluster
from kdist.client.admin.offsets import alter_group_offsets
from kdist.client.cluster import Cluster
from kdist.errors import UserError
from kdist.model import TopicPartition
from tests.unit.cli.cli_cluster import CliCluster

GOOD = "flow.f.source=127.0.0.1:1\nflow.f.target=127.0.0.1:2\n"


@pytest.fixture
def good(tmp_path: Path) -> str:
    file = tmp_path / "m.properties"
    file.write_text(GOOD)
    return str(file)


def flow_file(directory: Path, cluster: CliCluster, name: str, **given: str) -> Path:
    """A file with a flow, from the cluster into itself if nothing else is given."""
    file = directory / "m.properties"
    rows = {"source": cluster.address, "target": cluster.address, **given}
    file.write_text("".join(f"flow.{name}.{key}={value}\n" for key, value in rows.items()))
    return file


def run(*arguments: str) -> Result:
    return CliRunner().invoke(kdist, ["mirror", *arguments], standalone_mode=False)


def test_a_valid_file_is_reported_as_valid(good: str) -> None:
    for words in (("check", "--config", good), ("--config", good, "check")):
        done = run(*words)
        assert done.output == f"{good} is good: it has flow f.\n"


def test_without_a_file_there_is_nothing_to_run() -> None:
    for words in ((), ("run",), ("status",)):
        done = CliRunner().invoke(kdist, ["mirror", *words])
        assert done.exit_code == 2
        assert "Missing option '--config'" in done.output


@pytest.mark.parametrize("words", [(), ("run",), ("check",), ("status",)])
def test_an_invalid_file_is_refused_by_every_command_with_its_line(
    words: tuple[str, ...], good: str
) -> None:
    Path(good).write_text(GOOD + "flow.f.start=now\n")
    done = run(*words, "--config", good)
    assert isinstance(done.exception, UserError)
    assert "flow.f.start is 'now'" in str(done.exception)
    assert "line 3" in str(done.exception)


@pytest.mark.parametrize("words", [("run",), ("check",), ("status",)])
def test_security_settings_that_lack_something_are_refused_with_their_cluster(
    words: tuple[str, ...], good: str
) -> None:
    secret = "flow.f.target.sasl.username=u\nflow.f.target.sasl.password=of u\n"
    Path(good).write_text(GOOD + "flow.f.target.security.protocol=SASL_SSL\n" + secret)
    done = run(*words, "--config", good)
    said = str(done.exception) + done.output
    assert "flow.f.target: security_protocol is SASL_SSL, and needs sasl_mechanism" in said
    assert "of u" not in said


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    done = run("check", "--config", str(tmp_path / "x"))
    assert str(done.exception) == f"{tmp_path}/x does not exist"


def test_a_check_names_patterns_that_match_no_topic(cluster: CliCluster, tmp_path: Path) -> None:
    cluster.done("topics", "create", "re12")
    topics = r"re\\d{1,2},never.*"
    file = flow_file(tmp_path, cluster, "f", target="127.0.0.1:1", topics=topics)
    assert cluster.done("mirror", "check", "--config", file) == (
        f"f: the pattern never.* matches no topic of the source\n{file} is good: it has flow f.\n"
    )


def test_an_unknown_flow_is_refused(good: str) -> None:
    done = run("status", "--config", good, "--flow", "ff")
    assert str(done.exception) == "the file has no flow ff: did you mean f?"


def test_a_cluster_that_does_not_answer_is_named(good: str) -> None:
    done = run("status", "--config", good)
    assert isinstance(done.exception, UserError)
    assert "127.0.0.1:1" in str(done.exception)


@pytest.mark.parametrize("to", ["-1", "tomorrow", "1.5", "²", "9" * 5000])
def test_a_seek_goes_to_an_offset_or_an_end(good: str, to: str) -> None:
    done = run("seek", "--config", good, "--flow", "f", "--topic", "t", f"--to={to}")
    assert "must be an offset, earliest or latest" in str(done.exception)


def test_a_seek_needs_an_offset_that_every_partition_has(
    cluster: CliCluster, tmp_path: Path
) -> None:
    cluster.done("topics", "create", "sought", "--partitions", 2)
    cluster.done("produce", "sought", "--partition", 0, text="one\ntwo\n")
    file = flow_file(tmp_path, cluster, "s", prefix="copy.")
    words = ("mirror", "seek", "--config", file, "--flow", "s", "--topic", "sought", "--to")
    assert cluster.refused(*words, 2) == (
        "sought-1 has no offset 2: it now begins at 0 and ends at 0"
    )
    assert "no group" in cluster.refused("groups", "describe", "kdist-mirror-s")
    assert cluster.refused(*words, 3, "--partition", 0) == (
        "sought-0 has no offset 3: it now begins at 0 and ends at 2"
    )
    assert cluster.done(*words, 2, "--partition", 0) == "sought-0 goes on from offset 2.\n"


def test_a_seek_is_in_a_topic_that_the_flow_mirrors(cluster: CliCluster, tmp_path: Path) -> None:
    cluster.done("topics", "create", "unwanted")
    file = flow_file(tmp_path, cluster, "w", topics="wanted", prefix="w.")
    words = ("mirror", "seek", "--config", file, "--flow", "w", "--topic", "unwanted")
    assert cluster.refused(*words, "--to", "earliest") == "flow w does not mirror topic unwanted"
    assert "no group" in cluster.refused("groups", "describe", "kdist-mirror-w")


def test_an_unreachable_flow_does_not_hide_the_others(cluster: CliCluster, tmp_path: Path) -> None:
    file = tmp_path / "m.properties"
    lines = [f"flow.{name}.source={cluster.address}" for name in ("cut", "well")]
    lines += [f"flow.{name}.topics=not-there" for name in ("cut", "well")]
    lines += ["flow.cut.target=127.0.0.1:1", f"flow.well.target={cluster.address}"]
    file.write_text("\n".join([*lines, "flow.well.prefix=w."]))
    result = cluster.run("mirror", "status", "--config", file)
    assert result.exit_code == 1
    assert result.stdout == "well: there is no topic to mirror in the source.\n"
    assert result.stderr.startswith("kdist: flow cut: no broker answers at 127.0.0.1:1 ")
    result = cluster.run("mirror", "status", "--config", file, "--json")
    assert [json.loads(line)["flow"] for line in result.stdout.splitlines()] == ["well"]


def test_a_flow_without_topics_is_not_shown_as_up_to_date(
    cluster: CliCluster, tmp_path: Path
) -> None:
    file = flow_file(tmp_path, cluster, "f", prefix="dc1.", topics="not-there")
    assert cluster.done("mirror", "status", "--config", file) == (
        "f: there is no topic to mirror in the source.\n"
    )


def test_the_reason_of_a_stopped_partition_is_below_its_row(
    cluster: CliCluster, tmp_path: Path
) -> None:
    cluster.done("topics", "create", "halted")
    halted = {TopicPartition("halted", 0): 0}

    async def stop(asked: Cluster) -> None:
        await alter_group_offsets(asked, "kdist-mirror-h", halted, "target=0 stopped: no room")

    ask_cluster(Clients.at(cluster.address), stop)
    file = flow_file(tmp_path, cluster, "h", prefix="b.", topics="halted")
    lines = cluster.done("mirror", "status", "--config", file).splitlines()
    assert lines[1].split()[:3] == ["h", "halted-0", "b.halted-0"]
    assert lines[2] == "    stopped: no room"
    flow = json.loads(cluster.done("mirror", "status", "--config", file, "--json"))
    assert flow["partitions"][0]["stopped"] == "no room"
