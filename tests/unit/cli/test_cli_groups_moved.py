"""`kdist groups reset`, `delete` and `delete-offsets`: planned, done, refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kdist.client.consumer.consumer import Consumer
from tests.unit.cli.cli_cluster import CliCluster


@pytest.fixture(scope="module")
def topic(cluster: CliCluster) -> str:
    """Two partitions with ten records each."""
    cluster.done("topics", "create", "moving", "--partitions", 2)
    for partition in range(2):
        cluster.done("produce", "moving", "--partition", partition, text="x\n" * 10)
    return "moving"


@pytest.fixture
def group(cluster: CliCluster, topic: str, request: pytest.FixtureRequest) -> str:
    """A group that has read everything, called as its test."""
    name: str = request.node.name
    cluster.done("consume", topic, "--group", name, "--from-beginning", "--until-end")
    return name


def offsets(cluster: CliCluster, group: str) -> list[int]:
    found = json.loads(cluster.done("groups", "describe", group, "--json"))
    return [each["committed"] for each in found["offsets"]]


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-offset", "4"], [4, 4]),
        (["--to-offset", "4000"], [10, 10]),
        (["--shift-by", "-3"], [7, 7]),
        (["--by-duration", "2h", "--out-of-range"], [0, 0]),
        (["--to-datetime", "2100-01-01", "--out-of-range"], [10, 10]),
        (["--to-earliest", "--topic", "moving:1"], [10, 0]),
        (["--shift-by", "-1", "--topic", "moving:0", "--topic", "moving:1"], [9, 9]),
    ],
)
def test_a_group_is_reset(
    cluster: CliCluster, group: str, words: list[str], after: list[int]
) -> None:
    planned = cluster.done("groups", "reset", "--yes", group, *words, "--dry-run")
    assert planned.splitlines()[0].split() == [
        *("TOPIC", "PARTITION", "BEFORE", "AFTER", "END", "LAG"),
    ]
    assert f"Group {group} would go on from there in " in planned
    assert offsets(cluster, group) == [10, 10]
    lines = cluster.done("groups", "reset", "--yes", group, *words, "--json").splitlines()
    moves = [json.loads(line) for line in lines]
    assert all(each["carried_out"] and each["before"] == 10 for each in moves)
    assert offsets(cluster, group) == after


def test_exactly_one_target_is_given(cluster: CliCluster, group: str) -> None:
    for words in ([], ["--to-earliest", "--to-latest"], ["--to-offset", "1", "--shift-by", "1"]):
        result = cluster.run("groups", "reset", "--yes", group, *words)
        assert result.exit_code == 2
        assert "give one of --to-earliest" in result.stderr


def test_a_misspelt_group_or_topic_gets_the_nearest(cluster: CliCluster, group: str) -> None:
    assert cluster.refused("groups", "reset", "--yes", group[:-1], "--to-latest") == (
        f"there is no group {group[:-1]}: did you mean {group}?"
    )
    assert cluster.refused(
        "groups", "reset", "--yes", group, "--to-latest", "--topic", "movin"
    ) == ("there is no topic movin: did you mean moving?")
    assert cluster.refused(
        "groups", "reset", "--yes", group, "--to-latest", "--topic", "moving:5"
    ) == ("topic moving has no partition 5: it has 2, from 0")
    assert cluster.refused("groups", "delete-offsets", "--yes", group, "--topic", "movin") == (
        f"group {group} has no committed offsets for movin: did you mean moving?"
    )
    result = cluster.run("groups", "reset", "--yes", group, "--to-latest", "--topic", "moving:x")
    assert result.exit_code == 2
    result = cluster.run("groups", "reset", "--yes", group, "--by-duration", "soon")
    assert "is not a duration like 90s, 5m, 1h30m or 7d" in result.stderr


def test_a_new_group_is_given_its_first_offsets(cluster: CliCluster, topic: str) -> None:
    cluster.done("groups", "reset", "--yes", "newcomer", "--to-latest", "--topic", topic)
    assert offsets(cluster, "newcomer") == [10, 10]


@pytest.fixture
def member(cluster: CliCluster, topic: str) -> Iterator[str]:
    with Consumer(cluster.address, group_id="held", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        assert consumer.poll(20)
        yield "held"


def test_a_group_with_members_is_left_alone(cluster: CliCluster, member: str) -> None:
    cluster.done(
        "groups", "reset", "--yes", member, "--to-latest", "--topic", "moving", "--dry-run"
    )
    assert (
        cluster.refused("groups", "reset", "--yes", member, "--to-latest", "--topic", "moving")
        == f"group {member} has 1 member: stop all members to change its offsets"
    )
    assert "has members" in cluster.refused("groups", "delete", "--yes", member)


def test_offsets_and_groups_are_deleted(cluster: CliCluster, group: str) -> None:
    assert cluster.done("groups", "delete-offsets", "--yes", group, "--topic", "moving:1") == (
        f"Group {group} has no offsets in 1 partition any more.\n"
    )
    assert offsets(cluster, group) == [10]
    assert cluster.done("groups", "delete", "--yes", group) == f"Deleted group {group}.\n"
    assert cluster.refused("groups", "delete", "--yes", group).startswith(
        f"there is no group {group}"
    )
    assert cluster.refused("groups", "describe", group).startswith(f"there is no group {group}")


def test_a_group_without_a_name_is_refused(cluster: CliCluster, topic: str) -> None:
    result = cluster.run("groups", "reset", "--yes", "", "--to-earliest", "--topic", topic)
    assert result.exit_code == 2
    assert "Invalid value for 'GROUP': it is empty." in result.stderr
