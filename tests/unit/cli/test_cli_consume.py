"""`kdist consume`: where it begins, where it stops, what it shows and commits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kdist.cli.main import kdist
from kdist.records.build import build_batch
from tests.unit.cli.cli_cluster import CliCluster
from tests.unit.cli.cli_records import write

ROOT = Path(__file__).parents[3]
KDIST = [sys.executable, "-m", "kdist.cli"]
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def hundred(cluster: CliCluster) -> str:
    """A topic of one partition: value n at offset n, its time n minutes after the start."""
    cluster.done("topics", "create", "hundred")
    values = [str(number).encode() for number in range(100)]
    times = [START_MS + number * 60_000 for number in range(100)]
    write(
        cluster.address,
        "hundred",
        0,
        build_batch(values[:50], None, None, times[:50], timestamp_ms=START_MS),
    )
    write(
        cluster.address,
        "hundred",
        0,
        build_batch(values[50:], None, None, times[50:], timestamp_ms=START_MS),
    )
    return "hundred"


def values(cluster: CliCluster, *arguments: object) -> list[int]:
    return [int(line) for line in cluster.done("consume", *arguments).split()]


def test_a_topic_is_read_from_the_beginning_to_the_end(cluster: CliCluster, hundred: str) -> None:
    found = values(cluster, hundred, "--from-beginning", "--until-end")
    assert found == list(range(100))


def test_the_topic_may_be_given_as_in_kafkas_tools(cluster: CliCluster, hundred: str) -> None:
    words = ("--topic", hundred, "--bootstrap-server", cluster.address)
    assert values(cluster, *words, "--from-beginning", "--max", 3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "Missing argument 'TOPIC'."),
        (("a", "--topic", "b"), "Give one topic: a, or --topic b."),
    ],
)
@pytest.mark.parametrize("command", ["consume", "produce"])
def test_exactly_one_topic_must_be_given(
    command: str, words: tuple[str, ...], sentence: str
) -> None:
    result = CliRunner().invoke(kdist, [command, *words])
    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.parametrize("offset", [0, 1, 49, 50, 99])
def test_reading_starts_at_an_offset_in_the_middle_of_a_batch(
    cluster: CliCluster, hundred: str, offset: int
) -> None:
    found = values(cluster, hundred, "--offset", offset, "--until-end")
    assert found == list(range(offset, 100))


@pytest.mark.parametrize("limit", [1, 50, 51, 100])
def test_a_limit_of_records_is_kept(cluster: CliCluster, hundred: str, limit: int) -> None:
    assert values(cluster, hundred, "--from-beginning", "--max", limit) == list(range(limit))


def test_a_limit_of_zero_connects_to_nobody(cluster: CliCluster, hundred: str) -> None:
    assert values(cluster, hundred, "--max", 0, "--broker", "127.0.0.1:1") == []


def test_reading_starts_at_a_time_in_milliseconds_or_iso(cluster: CliCluster, hundred: str) -> None:
    exact = START_MS + 30 * 60_000
    for time in (exact, exact - 1, "2023-11-14T22:43:20", "2023-11-14T23:43:20+01:00"):
        assert values(cluster, hundred, "--time", time, "--until-end") == list(range(30, 100))
    assert values(cluster, hundred, "--time", "2030-01-01", "--until-end") == []


def test_an_invalid_time_is_a_wrong_flag(cluster: CliCluster, hundred: str) -> None:
    for wrong in ("yesterday", "²"):
        result = cluster.run("consume", hundred, "--time", wrong)
        assert result.exit_code == 2
        assert "ISO 8601" in result.stderr


def test_by_default_reading_starts_at_the_end(cluster: CliCluster, hundred: str) -> None:
    assert values(cluster, hundred, "--until-end") == []


def test_an_offset_out_of_range_is_refused_with_the_range(
    cluster: CliCluster, hundred: str
) -> None:
    sentence = cluster.refused("consume", hundred, "--offset", 101)
    assert sentence == "hundred-0 has no offset 101: it now begins at 0 and ends at 100"


def test_two_starting_positions_are_a_wrong_flag(cluster: CliCluster, hundred: str) -> None:
    result = cluster.run("consume", hundred, "--offset", 1, "--from-beginning")
    assert result.exit_code == 2


def test_a_missing_partition_is_a_one_sentence_error(cluster: CliCluster, hundred: str) -> None:
    sentence = cluster.refused("consume", hundred, "--partition", 1)
    assert sentence == "topic hundred has no partition 1: it has 1 partition, from 0"


def test_a_misspelt_topic_gets_the_nearest(cluster: CliCluster, hundred: str) -> None:
    sentence = cluster.refused("consume", "hundrd")
    assert sentence == "there is no topic hundrd: did you mean hundred?"


def test_json_has_every_field_of_a_record(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "whole")
    batch = build_batch(
        [b"value", None, b"\xff"],
        [b"key", b"", None],
        [[("h", b"1"), ("h", None)], [], []],
        timestamp_ms=START_MS,
    )
    write(cluster.address, "whole", 0, batch)
    output = cluster.done("consume", "whole", "--from-beginning", "--until-end", "--json")
    where = {"topic": "whole", "partition": 0}
    assert [json.loads(line) for line in output.splitlines()] == [
        {
            **where,
            "offset": 0,
            "timestamp": START_MS,
            "key": "key",
            "value": "value",
            "headers": [["h", "1"], ["h", None]],
        },
        {**where, "offset": 1, "timestamp": START_MS, "key": "", "value": None, "headers": []},
        {
            **where,
            "offset": 2,
            "timestamp": START_MS,
            "key": None,
            "value": {"hex": "ff"},
            "headers": [],
        },
    ]


def test_keys_are_printed_before_values_with_a_tab_between(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "tabbed")
    cluster.done("produce", "tabbed", "--key-separator", "=", text="a=1\nb=2\n")
    output = cluster.done("consume", "tabbed", "--from-beginning", "--until-end", "--keys")
    assert output == "a\t1\nb\t2\n"


def test_all_partitions_of_all_brokers_are_read_each_in_order(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "spread", "--partitions", 6)
    for partition in range(6):
        text = "".join(f"{partition}.{number}\n" for number in range(20))
        cluster.done("produce", "spread", "--partition", partition, text=text)
    lines = cluster.done("consume", "spread", "--from-beginning", "--until-end").split()
    assert len(lines) == 120
    for partition in range(6):
        mine = [line for line in lines if line.startswith(f"{partition}.")]
        assert mine == [f"{partition}.{number}" for number in range(20)]


def test_a_group_resumes_where_it_stopped(cluster: CliCluster, hundred: str) -> None:
    group = ("--group", "walker")
    assert values(cluster, hundred, *group, "--from-beginning", "--max", 10) == list(range(10))
    assert values(cluster, hundred, *group, "--max", 45) == list(range(10, 55))
    # --from-beginning applies only to partitions without a committed offset.
    found = values(cluster, hundred, *group, "--from-beginning", "--until-end")
    assert found == list(range(55, 100))
    assert values(cluster, hundred, *group, "--until-end") == []


def test_a_group_without_a_name_is_a_wrong_flag(cluster: CliCluster, hundred: str) -> None:
    refused = cluster.run("consume", hundred, "--group", "", "--from-beginning", "--until-end")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Invalid value for '--group': it is empty." in refused.stderr


def test_an_explicit_position_overrides_the_committed_offsets(
    cluster: CliCluster, hundred: str
) -> None:
    values(cluster, hundred, "--group", "jumper", "--from-beginning", "--until-end")
    assert values(cluster, hundred, "--group", "jumper", "--offset", 95, "--max", 2) == [95, 96]
    assert values(cluster, hundred, "--group", "jumper", "--until-end") == [97, 98, 99]


def test_two_groups_are_independent(cluster: CliCluster, hundred: str) -> None:
    for group in ("left", "right"):
        found = values(cluster, hundred, "--group", group, "--from-beginning", "--max", 3)
        assert found == [0, 1, 2]


def consume_process(cluster: CliCluster, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*KDIST, "consume", *arguments],
        cwd=ROOT,
        env={**os.environ, "KDIST_BROKER": cluster.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_it_waits_for_new_records_and_an_interrupt_commits_those_shown(
    cluster: CliCluster, number: int, status: int
) -> None:
    name = f"live-{number}"
    cluster.done("topics", "create", name, "--partitions", 2)
    cluster.done("produce", name, "--partition", 0, text="old\n")
    process = consume_process(cluster, name, "--group", "watcher", "--from-beginning")
    assert process.stdout is not None
    assert process.stdout.readline() == b"old\n"
    for word in ("new", "newer"):
        cluster.done("produce", name, "--partition", 1, text=f"{word}\n")
        assert process.stdout.readline() == f"{word}\n".encode()
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (status, b"")
    assert b"Traceback" not in errors
    assert cluster.done("consume", name, "--group", "watcher", "--until-end") == ""


def test_a_closed_pipe_ends_it_silently(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "abandoned")
    cluster.done("produce", "abandoned", text="first\n")
    process = consume_process(cluster, "abandoned", "--from-beginning")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"first\n"
    process.stdout.close()
    cluster.done("produce", "abandoned", text="second\n")
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=30) != 0
