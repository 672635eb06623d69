"""`kdist consume`: where it begins, where it stops, what it shows and commits."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kdist.cli.main import kdist
from kdist.client.cluster import Cluster, parse_addresses
from kdist.client.produce_once import produce
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from kdist.network.network import AsyncioNetwork
from kdist.records.build import build_batch
from tests.unit.cli.cli_cluster import CliCluster


def write(address: str, topic: str, partition: int, batch: bytearray) -> None:
    """Append one batch."""

    async def append() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        cluster = Cluster(network, parse_addresses(address), ClientSettings(client_id="test"))
        await produce(cluster, {TopicPartition(topic, partition): batch})
        cluster.close()

    asyncio.run(append())


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
        ("produce", "Missing argument 'TOPIC'."),
        ("produce a --topic b", "Give one topic: a, or --topic b."),
        ("consume", "Missing argument 'TOPIC...'."),
        ("consume a --include b", "Give topics, or --include."),
        ("consume --include (", "'(' is no regular expression: missing ), unterminated subpattern"),
        ("consume a --include=", "Invalid value for '--include': it is empty."),
        ("consume a b --partition 0", "--partition is for one topic."),
        ("consume --include a --partition 0", "--partition is for one topic."),
        ("consume a --offset 1 --last 1", "Give one of --from-beginning, --offset, --time and"),
        ("consume a --time 0 --from-beginning", "Give one of --from-beginning, --offset, --time"),
        ("consume a --offset 5 --until-offset 4", "--until-offset is before the start."),
        (
            "consume a --time 2026-01-02 --until-time 2026-01-01",
            "--until-time is before the start.",
        ),
        ("consume a --until-time 2999-01-01", "'--until-time': it is still to come."),
        ("consume a --last -1", "Invalid value for '--last': -1 is not in the range x>=0."),
        ("consume a --keys --json", "Give one of --keys, --format and --json."),
        ("consume a -f %s --json", "Give one of --keys, --format and --json."),
        ("consume a --null x --json", "--null is for text: --json has its own null."),
        ("consume a -f %q", "'--format': %q is none of %s %S %R %k %K %T %h %t %p %o %%."),
        ("consume a -f 100%", "'--format': % is none of %s"),
        ("consume a --group g --offset 1", "Group g decides where to begin"),
        ("consume a --group g --last 1", "Group g decides where to begin"),
        ("consume a --group g --partition 1", "Group g decides where to begin"),
        ("consume a -X group.id=g --time 0", "Group g decides where to begin"),
        (
            "consume a -X linger.ms=5",
            "linger.ms is a producer's setting, and this command has none",
        ),
    ],
)
def test_options_that_do_not_go_together_are_a_wrong_flag(words: str, sentence: str) -> None:
    result = CliRunner().invoke(kdist, [*words.split(), "--broker", "127.0.0.1:1"])
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


@pytest.mark.parametrize(("last", "begin"), [(0, 100), (1, 99), (51, 49), (100, 0), (1000, 0)])
def test_the_last_records_are_read(
    cluster: CliCluster, hundred: str, last: int, begin: int
) -> None:
    found = values(cluster, hundred, "--last", last, "--until-end")
    assert found == list(range(begin, 100))


def test_the_last_records_are_counted_in_each_partition(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "both", "--partitions", 2)
    for partition in range(2):
        text = "".join(f"{partition}{number}\n" for number in range(3))
        cluster.done("produce", "both", "--partition", partition, text=text)
    cluster.done("topics", "delete-records", "--yes", "both:1", "--before-offset", 2)
    assert sorted(values(cluster, "both", "--last", 2, "--until-end")) == [1, 2, 12]


@pytest.mark.parametrize(
    ("words", "begin", "end"),
    [
        (["--offset", 20, "--until-offset", 60], 20, 60),
        (["--offset", 49, "--until-offset", 50], 49, 50),
        (["--offset", 20, "--until-offset", 20], 20, 20),
        (["--from-beginning", "--until-offset", 51], 0, 51),
        (["--last", 5, "--until-offset", 98], 95, 98),
        (["--offset", 90, "--until-offset", 1_000, "--until-end"], 90, 100),
        (["--offset", 90, "--until-offset", 95, "--until-end"], 90, 95),
        (["--last", 5, "--until-offset", 3], 95, 95),
        (["--from-beginning", "--until-time", START_MS + 30 * 60_000], 0, 30),
        (["--from-beginning", "--until-time", START_MS + 30 * 60_000 + 1], 0, 31),
        (["--time", START_MS + 60_000, "--until-time", START_MS + 180_000], 1, 3),
        (["--time", "2023-11-14T22:43:20", "--until-time", "2023-11-14T22:44:20Z"], 30, 31),
        (["--offset", 98, "--until-time", "2026-01-01"], 98, 100),
        (["--from-beginning", "--until-time", 0], 0, 0),
        (["--offset", 20, "--until-offset", 60, "--max", 3], 20, 23),
    ],
)
def test_a_range_ends_before_its_end(
    cluster: CliCluster, hundred: str, words: list[object], begin: int, end: int
) -> None:
    assert values(cluster, hundred, *words) == list(range(begin, end))


def test_an_end_beyond_the_topics_is_waited_for(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "growing")
    cluster.done("produce", "growing", text="0\n1\n")
    process = consume_process(cluster, "growing", "--from-beginning", "--until-offset", "3")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [b"0\n", b"1\n"]
    cluster.done("produce", "growing", text="2\n3\n")
    assert process.communicate(timeout=30) == (b"2\n", b"")
    assert process.returncode == 0


@pytest.mark.parametrize(("reset", "count"), [("earliest", 100), ("latest", 0)])
def test_a_setting_says_where_to_begin_for_want_of_an_option(
    cluster: CliCluster, hundred: str, reset: str, count: int
) -> None:
    words = (hundred, "-X", f"auto.offset.reset={reset}", "--until-end")
    assert len(values(cluster, *words)) == count
    assert len(values(cluster, *words, "--group", f"set-to-{reset}")) == count
    assert values(cluster, *words, "--last", 1) == [99]
    sentence = cluster.refused("consume", hundred, "-X", "auto.offset.reset=none")
    assert sentence == ("auto.offset.reset is none: say where to begin, as with --from-beginning")


# Several topics


def test_several_topics_are_read_however_they_are_given(cluster: CliCluster) -> None:
    for name in ("many-a", "many-b", "many-b-dlq"):
        cluster.done("topics", "create", name, "--partitions", 2)
        cluster.done("produce", name, text=f"{name}\n")
    rest = ("--from-beginning", "--until-end")
    for words, found in (
        (["many-a", "many-b"], ["many-a", "many-b"]),
        (["many-a", "--topic", "many-b", "many-a"], ["many-a", "many-b"]),
        (["--topic", "many-a", "--topic", "many-b"], ["many-a", "many-b"]),
        (["--include", "many-[ab]"], ["many-a", "many-b"]),
        (["--include", "many-.*"], ["many-a", "many-b", "many-b-dlq"]),
    ):
        assert sorted(cluster.done("consume", *words, *rest).split()) == found
        group = ("--group", f"many-{len(words)}-{words[-1][-3:]}")
        assert sorted(cluster.done("consume", *words, *rest, *group).split()) == found
    assert cluster.refused("consume", "many-a", "many-c").startswith("there is no topic many-c")
    for pattern in ("many", "__consumer_.*"):
        sentence = cluster.refused("consume", "--include", pattern)
        assert sentence == f"no topic's name matches {pattern}"


def test_a_group_finds_new_topics_of_its_pattern(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "found-1")
    cluster.done("produce", "found-1", text="first\n")
    process = consume_process(
        cluster,
        *("--include", "found-.*", "--group", "finder", "--from-beginning"),
        *("-X", "metadata.max.age.ms=200"),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"first\n"
    cluster.done("topics", "create", "found-2")
    cluster.done("produce", "found-2", text="second\n")
    assert process.stdout.readline() == b"second\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors.strip()) == (130, b"", b"")


# Formats


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        ("%t/%p/%o ", b"formed/0/0 formed/0/1 formed/0/2 "),
        ("%k=%s\\n", b"key=value\n=\n=\xff\x00\n"),
        ("%K %S;", b"3 5;0 -1;-1 2;"),
        ("%R%s", b"\0\0\0\x05value\xff\xff\xff\xff\0\0\0\x02\xff\0"),
        ("%T,", b"%d," % START_MS * 3),
        ("[%h]", b"[h=1,h=NULL][][]"),
        ("100%%\\t\\r\\x41\\101\\\\\\q\udcff|", b"100%\t\rAA\\q\xff|" * 3),
    ],
)
def test_a_format_has_kcats_tokens(cluster: CliCluster, form: str, shown: bytes) -> None:
    if "formed" not in cluster.done("topics", "list"):
        cluster.done("topics", "create", "formed")
        batch = build_batch(
            [b"value", None, b"\xff\0"],
            [b"key", b"", None],
            [[("h", b"1"), ("h", None)], [], []],
            timestamp_ms=START_MS,
        )
        write(cluster.address, "formed", 0, batch)
    words = ("consume", "formed", "--from-beginning", "--until-end")
    for option in ("-f", "--format"):
        assert cluster.run(*words, option, form).stdout_bytes == shown


def test_a_text_may_stand_for_null(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "nulls")
    batch = build_batch([b"v", None], [None, b"k"], [[("h", None)], []], timestamp_ms=START_MS)
    write(cluster.address, "nulls", 0, batch)
    words = ("consume", "nulls", "--from-beginning", "--until-end")
    assert cluster.done(*words) == "v\n\n"
    assert cluster.done(*words, "--null", "NUL") == "v\nNUL\n"
    assert cluster.done(*words, "--null", "NUL", "--keys") == "NUL\tv\nk\tNUL\n"
    assert cluster.done(*words, "--null", "-", "-f", "%k=%s %h;") == "-=v h=-;k=- ;"


# Groups


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


def test_a_group_whose_offsets_were_reset_goes_on_from_there(
    cluster: CliCluster, hundred: str
) -> None:
    values(cluster, hundred, "--group", "jumper", "--from-beginning", "--until-end")
    cluster.done("groups", "reset", "--yes", "jumper", "--to-offset", 95, "--topic", hundred)
    assert values(cluster, hundred, "--group", "jumper", "--max", 2) == [95, 96]
    assert values(cluster, hundred, "--group", "jumper", "--until-offset", 98) == [97]
    assert values(cluster, hundred, "--group", "jumper", "--until-offset", 5) == []
    assert values(cluster, hundred, "--group", "jumper", "--until-end") == [98, 99]


def test_a_group_goes_on_with_the_oldest_record_where_retention_overtook_it(
    cluster: CliCluster,
) -> None:
    cluster.done("topics", "create", "overtaken")
    cluster.done("produce", "overtaken", text="0\n1\n2\n3\n")
    group = ("--group", "overtaken")
    assert values(cluster, "overtaken", *group, "--from-beginning", "--max", 1) == [0]
    cluster.done("topics", "delete-records", "--yes", "overtaken:0", "--before-offset", 2)
    assert values(cluster, "overtaken", *group, "--until-end") == [2, 3]


def committed(cluster: CliCluster, group: str) -> list[tuple[int, int]]:
    found = json.loads(cluster.done("groups", "describe", group, "--json"))
    return [(each["partition"], each["committed"]) for each in found["offsets"]]


def test_what_a_group_was_not_shown_is_not_committed(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "unseen", "--partitions", 3)
    for partition in range(3):
        text = "".join(f"{partition}{number}\n" for number in range(10))
        cluster.done("produce", "unseen", "--partition", partition, text=text)
    seen = values(cluster, "unseen", "--group", "blinker", "--from-beginning", "--max", 13)
    counts = [sum(value // 10 == partition for value in seen) for partition in range(3)]
    assert sum(counts) == 13
    assert committed(cluster, "blinker") == list(enumerate(counts))
    rest = values(cluster, "unseen", "--group", "blinker", "--until-end")
    assert sorted(seen + rest) == sorted(
        10 * partition + number for partition in range(3) for number in range(10)
    )


def test_a_group_that_must_not_commit_commits_nothing(cluster: CliCluster, hundred: str) -> None:
    words = ("--group", "forgetful", "-X", "enable.auto.commit=false")
    for _ in range(2):
        assert values(cluster, hundred, *words, "--from-beginning", "--max", 2) == [0, 1]
    assert committed(cluster, "forgetful") == []


def test_a_member_is_shown_and_shares_the_partitions(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "shared", "--partitions", 2)
    words = ("shared", "--group", "sharers", "--from-beginning", "-f", "%p %s\\n")
    members = [
        consume_process(cluster, *words, "-X", f"client.id=member-{number}") for number in (1, 2)
    ]
    shares: list[object] = []
    clients: set[str] = set()
    while shares != [[["shared", 0]], [["shared", 1]]]:
        result = cluster.run("groups", "describe", "sharers", "--json")
        found = json.loads(result.stdout)["members"] if result.exit_code == 0 else []
        shares = sorted(each["partitions"] for each in found)
        clients = {each["client"] for each in found}
    assert clients == {"member-1", "member-2"}
    for partition in range(2):
        cluster.done("produce", "shared", "--partition", partition, text=f"to {partition}\n")
    shown = []
    for process in members:
        assert process.stdout is not None
        shown.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
        assert (process.returncode, output, errors.strip()) == (130, b"", b"")
    assert sorted(shown) == [b"0 to 0\n", b"1 to 1\n"]
    assert committed(cluster, "sharers") == [(0, 1), (1, 1)]


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
