"""`kdist config`: every fault at once, every setting with its value, its source and its meaning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kdist.cli.main import kdist
from kdist.config.broker_config import BROKER_NAMES, BROKER_TABLE
from kdist.config.topic import TopicSettings

GOOD = """\
broker.id=7
log.dir=/srv/kdist/d01
zookeeper.connect=zk1:2181/kdist
log.retention.hours=240
num.network.threads=8
"""
BAD = """\
broker.id=seven
log.dir=/srv/kdist/d01
log.segmnt.bytes=100
process.roles=broker
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.properties"
    path.write_text(GOOD)
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.properties"
    path.write_text(BAD)
    return path


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(kdist, ["config", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def rows(*arguments: object) -> list[dict[str, object]]:
    return [json.loads(line) for line in run("describe", *arguments, "--json").stdout.splitlines()]


# check


def test_a_valid_file_passes_and_oddities_are_warnings(good: Path) -> None:
    result = run("check", good)
    assert result.exit_code == 0
    warning, verdict = result.stdout.splitlines()
    assert warning.startswith("warning  num.network.threads is ignored")
    assert f"({good}, line 5)" in warning
    assert verdict == f"{good} is good: 5 settings given."


def test_all_faults_are_reported_at_once_with_their_lines(bad: Path) -> None:
    result = run("check", bad)
    assert result.exit_code == 1
    *faults, verdict = result.stdout.splitlines()
    assert verdict == f"{bad} is refused, with 4 faults."
    assert [fault.split()[:2] for fault in faults] == [
        ["fault", "broker.id"],
        ["fault", "log.segmnt.bytes"],
        ["fault", "process.roles"],
        ["fault", "zookeeper.connect"],
    ]
    for number, fault in zip((1, 3, 4), faults[:3], strict=True):
        assert f"({bad}, line {number})" in fault
    assert "did you mean log.segment.bytes" in faults[1]


def test_an_agents_security_settings_are_checked_with_each_other(tmp_path: Path) -> None:
    file = tmp_path / "agent.properties"
    file.write_text("bootstrap.servers=b1:9092\nsecurity.protocol=SASL_SSL\n")
    result = run("check", file, "--for", "agent")
    assert result.exit_code == 1
    assert "security_protocol is SASL_SSL, and needs sasl_mechanism" in result.stdout


def test_a_check_in_json_has_faults_and_warnings_as_lists(good: Path, bad: Path) -> None:
    found = json.loads(run("check", good, "--json").stdout)
    assert (found["file"], found["is_good"], found["faults"]) == (str(good), True, [])
    assert len(found["warnings"]) == 1
    refused = run("check", bad, "--json")
    assert refused.exit_code == 1
    found = json.loads(refused.stdout)
    assert (found["is_good"], len(found["faults"])) == (False, 4)


def test_a_file_that_cannot_be_read_is_a_one_sentence_error(tmp_path: Path) -> None:
    missing, binary = tmp_path / "missing", tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, sentence in (
        (missing, f"{missing} does not exist"),
        (binary, f"{binary} is not UTF-8 text"),
        (tmp_path, f"{tmp_path}: Is a directory"),
    ):
        for command in ("check", "describe"):
            result = run(command, path)
            assert (result.exit_code, result.stderr) == (1, f"kdist: {sentence}\n")


# describe


def test_a_files_values_have_the_file_as_source_and_others_the_default(good: Path) -> None:
    found = {row["name"]: row for row in rows(good)}
    assert (found["broker.id"]["value"], found["broker.id"]["source"]) == ("7", "file")
    kept = found["log.retention.ms"]
    assert (kept["value"], kept["source"], kept["default"]) == ("864000000", "file", "604800000")
    segment = found["log.segment.bytes"]
    assert (segment["value"], segment["source"]) == (segment["default"], "default")


def test_without_a_file_every_setting_is_shown_with_its_default() -> None:
    found = rows()
    assert len(found) == len(BROKER_TABLE) + len(TopicSettings.TABLE)
    assert all(row["value"] == row["default"] and row["doc"] for row in found)
    required = {row["name"] for row in found if row["is_required"]}
    assert required == {"broker.id", "log.dir", "zookeeper.connect"}


def test_a_setting_is_found_by_each_of_its_names(good: Path) -> None:
    for name in ("log.retention.ms", "log.retention.hours", "retention.ms"):
        (row,) = rows(good, name)
        assert row["name"] == "log.retention.ms"
    assert {str(name) for row in rows() for name in _list(row["names"])} >= BROKER_NAMES


def test_a_star_matches_any_text() -> None:
    found = rows("log.retention.*")
    assert len(found) > 1
    assert all("retention" in str(row["name"]) for row in found)
    assert len(rows("log.retention.*", "log.retention.ms")) == len(found)


def test_a_table_shows_what_a_value_means(good: Path) -> None:
    title, row, meaning, _ = run("describe", good, "log.retention.ms").stdout.splitlines()
    assert title.split() == ["NAME", "VALUE", "SOURCE", "DEFAULT"]
    assert row.split() == ["log.retention.ms", "864000000", "file", "604800000"]
    assert meaning.endswith("(ms, here 10 days)")


def test_a_misspelt_name_gets_the_nearest() -> None:
    result = run("describe", "log.retntion.ms")
    expected = "kdist: there is no setting log.retntion.ms: did you mean log.retention.ms?\n"
    assert (result.exit_code, result.stderr) == (1, expected)


def test_a_file_with_faults_is_not_described(bad: Path) -> None:
    result = run("describe", bad)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "line 3" in result.stderr


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value
