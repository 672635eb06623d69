"""`kdist topics apply`: the plan is shown, carried out once, and refused as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kdist.client.admin import topics as admin_topics
from kdist.errors import UserError
from tests.unit.cli.cli_cluster import CliCluster


def write(path: Path, *topics: dict[str, object]) -> Path:
    file = path / "topics.json"
    file.write_text(json.dumps(topics))
    return file


def test_topics_are_created_once_and_grow(cluster: CliCluster, tmp_path: Path) -> None:
    file = write(tmp_path, {"name": "coded", "partitions": 2})
    words = ("topics", "apply", file)
    assert cluster.done(*words, "--plan") == "plan  create topic coded\n"
    assert "coded" not in cluster.done("topics", "list")
    assert cluster.done(*words) == "do    create topic coded\n"
    assert cluster.done(*words) == "Nothing to change: every topic is as the file says.\n"
    write(tmp_path, {"name": "coded", "partitions": 3})
    assert json.loads(cluster.done(*words, "--json")) == {
        "steps": ["grow topic coded to 3 partitions"],
        "refusals": [],
        "carried_out": True,
    }
    write(tmp_path, {"name": "coded", "state": "absent"})
    assert cluster.run(*words).exit_code == 1
    confirmed = cluster.done(*words, "--delete", "coded")
    assert confirmed == "do    delete topic coded with all its records\n"
    assert "coded" not in cluster.done("topics", "list")


def test_settings_are_set_where_they_differ(cluster: CliCluster, tmp_path: Path) -> None:
    wish: dict[str, object] = {"retention.ms": 1000000, "cleanup.policy": "compact"}
    file = write(tmp_path, {"name": "coded-tuned", "config": wish})
    cluster.done("topics", "create", "coded-tuned", "--config", "retention.ms=1000000")
    assert cluster.done("topics", "apply", file) == (
        "do    set cleanup.policy=compact of topic coded-tuned\n"
    )
    assert (
        cluster.done("topics", "apply", file)
        == "Nothing to change: every topic is as the file says.\n"
    )


def test_the_zookeeper_option_of_earlier_playbooks_is_accepted(
    cluster: CliCluster, tmp_path: Path
) -> None:
    file = write(tmp_path)
    output = cluster.done("topics", "apply", file, "--zookeeper", "zk:2181/kdist")
    assert output == "Nothing to change: every topic is as the file says.\n"


def test_if_one_declaration_is_refused_nothing_is_done(cluster: CliCluster, tmp_path: Path) -> None:
    cluster.done("topics", "create", "fixed", "--partitions", 2)
    file = write(tmp_path, {"name": "other"}, {"name": "fixed", "partitions": 1})
    result = cluster.run("topics", "apply", file)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "no    topic fixed has 2 partitions, and they only become more: not 1",
        "plan  create topic other",
    ]
    assert "other" not in cluster.done("topics", "list")


def test_if_the_cluster_refuses_one_step_nothing_is_done(
    cluster: CliCluster, tmp_path: Path
) -> None:
    cluster.done("topics", "create", "grown", "--partitions", 2)
    file = write(
        tmp_path,
        {"name": "grown", "partitions": 3},
        {"name": "spoilt", "config": {"retention.ms": "soon"}},
    )
    for more in ((), ("--json",), ("--plan",)):
        result = cluster.run("topics", "apply", file, *more)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "topic spoilt: retention.ms is 'soon'" in result.stderr
    assert "grown       3" not in cluster.done("topics", "list")
    write(tmp_path, {"name": "spoilt"}, {"name": "grown", "partitions": 100_000})
    assert "100000 partitions" in cluster.refused("topics", "apply", file)
    assert "spoilt" not in cluster.done("topics", "list")


def test_steps_done_before_a_failure_are_reported(
    cluster: CliCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise UserError("the cluster went away")

    monkeypatch.setattr(admin_topics, "delete_topic", fail)
    cluster.done("topics", "create", "leaving")
    wish = ({"name": "coming"}, {"name": "leaving", "state": "absent"}, {"name": "after"})
    file = write(tmp_path, *wish)
    result = cluster.run("topics", "apply", file, "--delete", "leaving", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["steps"] == ["create topic coming"]
    result = cluster.run("topics", "apply", file, "--delete", "leaving")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "kdist: the cluster went away\n"


def test_a_name_that_is_given_twice_is_refused(cluster: CliCluster, tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    file.write_text('[{"name": "twice", "partitions": 1, "partitions": 2}]')
    assert cluster.refused("topics", "apply", file) == (
        f"{file}: 'partitions' is given twice, so it would not be said which value counts"
    )
    file.write_text('[{"name": "t", "config": {"retention.ms": "1", "retention.ms": "2"}}]')
    assert "'retention.ms' is given twice" in cluster.refused("topics", "apply", file)


def test_a_file_that_cannot_be_read_is_named(cluster: CliCluster, tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    words = ("topics", "apply", file)
    assert cluster.refused(*words) == f"{file} does not exist"
    file.write_text("[")
    assert cluster.refused(*words).startswith(f"{file} is not JSON: ")
    file.write_text("[" * 100_000)
    assert cluster.refused(*words) == f"{file} is not a list of topics: it is nested too deeply"
