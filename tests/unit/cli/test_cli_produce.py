"""`kdist produce`: how lines become records, what is counted, what is refused."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kdist.cli.main import kdist
from kdist.cli.produce.input import Fixed, JsonLines, TextLines
from kdist.cli.produce.produce import Sending
from kdist.cli.shared.line_source import CHUNK_BYTES, LINE_BYTES_MAX, Splitter
from kdist.client.partitioner import partition_for
from kdist.client.producer.faults import BufferFull
from kdist.errors import UserError
from kdist.model import TopicPartition
from tests.unit.cli.cli_cluster import CliCluster, cli_cluster
from tests.unit.client.producer_world import Fault, Scene, play

ROOT = Path(__file__).parents[3]
KDIST = [sys.executable, "-m", "kdist.cli"]


def topic(cluster: CliCluster, name: str, partitions: int = 1) -> str:
    cluster.done("topics", "create", name, "--partitions", partitions)
    return name


def consumed(cluster: CliCluster, name: str, *options: object) -> str:
    return cluster.done("consume", name, "--from-beginning", "--until-end", *options)


def records(cluster: CliCluster, name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in consumed(cluster, name, "--json").splitlines()]


def test_each_line_is_a_record_and_all_are_counted(cluster: CliCluster) -> None:
    name = topic(cluster, "lines")
    output = cluster.done("produce", name, text="one\n\nthree\n")
    rates = r"[\d,]+ records/s, [\d.]+ (B|KiB)/s"
    assert re.fullmatch(rf"3 records \(8 B\) in \d+\.\d\d s: {rates}\n", output)
    assert consumed(cluster, name) == "one\n\nthree\n"


def test_the_time_that_a_request_may_take_is_set_alone(cluster: CliCluster) -> None:
    name = topic(cluster, "patient")
    words = ["-X", "request.timeout.ms=30000"]  # the command's own time for delivery is as long
    assert cluster.done("produce", name, *words, text="one\n").startswith("1 record")


def test_the_last_line_needs_no_newline(cluster: CliCluster) -> None:
    name = topic(cluster, "endless")
    assert cluster.done("produce", name, text="one\ntwo").startswith("2 records")
    assert consumed(cluster, name) == "one\ntwo\n"


def test_empty_input_produces_nothing(cluster: CliCluster) -> None:
    name = topic(cluster, "silence")
    assert cluster.done("produce", name, text="").startswith("0 records (0 B)")
    assert consumed(cluster, name) == ""


def test_bytes_that_are_not_utf_8_are_sent_unchanged(cluster: CliCluster) -> None:
    name = topic(cluster, "binary")
    cluster.done("produce", name, text=b"\xff\x00\r\nplain\n")
    found = cluster.run("consume", name, "--from-beginning", "--until-end")
    assert found.stdout_bytes == b"\xff\x00\r\nplain\n"


def test_the_count_in_json_is_of_values_and_keys(cluster: CliCluster) -> None:
    name = topic(cluster, "counted")
    report = json.loads(cluster.done("produce", name, "--json", text="aa\nb\n"))
    assert (report["records"], report["bytes"]) == (2, 3)
    assert report["seconds"] >= 0


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_codec_are_read_back(cluster: CliCluster, codec: str) -> None:
    name = topic(cluster, f"codec-{codec}")
    text = "".join(f"line {number}\n" for number in range(500))
    cluster.done("produce", name, "--codec", codec, text=text)
    assert consumed(cluster, name) == text


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_are_written_with_every_acks(cluster: CliCluster, acks: str) -> None:
    name = topic(cluster, f"acks-{acks}")
    assert cluster.done("produce", name, "--acks", acks, text="a\nb\n").startswith("2 records")
    assert cluster.done("consume", name, "--from-beginning", "--max", 2) == "a\nb\n"


def test_keys_go_where_the_java_producer_puts_them(cluster: CliCluster) -> None:
    name = topic(cluster, "keyed", partitions=5)
    text = "".join(f"key-{number % 40}:{number}\n" for number in range(200))
    cluster.done("produce", name, "--key-separator", ":", text=text)
    found = records(cluster, name)
    assert len(found) == 200
    assert {record["partition"] for record in found} == set(range(5))
    for record in found:
        assert record["partition"] == partition_for(str(record["key"]).encode(), 5)


def test_only_the_first_separator_ends_the_key(cluster: CliCluster) -> None:
    name = topic(cluster, "separated")
    cluster.done("produce", name, "--key-separator", "\\t", text="k\tv\tw\n\tno key\n")
    found = [(record["key"], record["value"]) for record in records(cluster, name)]
    assert found == [("k", "v\tw"), ("", "no key")]


def test_a_separator_may_be_any_bytes(cluster: CliCluster) -> None:
    name = topic(cluster, "latin")
    sentence = cluster.refused("produce", name, "--key-separator", "\udcff", text="no key\n")
    assert sentence.startswith("line 1 has no '\ufffd' between key and value")


def test_a_line_without_the_separator_is_named(cluster: CliCluster) -> None:
    name = topic(cluster, "unkeyed")
    sentence = cluster.refused("produce", name, "--key-separator", ":", text="a:1\nb2\n")
    assert sentence == "line 2 has no ':' between key and value; written: 1 record"


def test_records_written_before_an_error_are_counted(cluster: CliCluster) -> None:
    name = topic(cluster, "hapless")
    text = "1\n2\n3\n" + "x" * 2_000_000 + "\n4\n"
    sentence = cluster.refused("produce", name, text=text)
    assert sentence == (
        "hapless-0: 2000074 bytes are more than the 1048588 a batch may have; written: 4 records"
    )
    assert len(records(cluster, name)) == 4
    lines = "x" * 99 + "\n"
    text = lines * (CHUNK_BYTES // 100 + 1) + "x" * LINE_BYTES_MAX * 2
    sentence = cluster.refused("produce", name, text=text)
    count = CHUNK_BYTES // 100 + 1
    assert sentence == f"line {count + 1} is longer than 16 MiB; written: {count:,} records"


@pytest.mark.parametrize("good", [0, 1, 10, CHUNK_BYTES // 10 + 1])
@pytest.mark.parametrize(
    ("words", "line", "bad"),
    [
        ((), "x" * 12, "x" * (LINE_BYTES_MAX + CHUNK_BYTES + 1)),
        (("--key-separator", "="), "k=" + "v" * 10, "none"),
        (("--from-json",), '{"value":"v"}', "{"),
    ],
)
def test_all_lines_before_a_bad_one_are_written_in_any_format(
    cluster: CliCluster, words: tuple[str, ...], line: str, bad: str, good: int
) -> None:
    name = topic(cluster, f"good-{good}-{len(words)}{len(line)}")
    sentence = cluster.refused("produce", name, *words, text=f"{line}\n" * good + f"{bad}\nk=v\n")
    assert sentence.startswith(f"line {good + 1}")
    assert len(records(cluster, name)) == good


def test_a_named_partition_gets_every_record(cluster: CliCluster) -> None:
    name = topic(cluster, "narrow", partitions=3)
    cluster.done("produce", name, "--partition", 2, "--key-separator", ":", text="a:1\nb:2\n")
    assert {record["partition"] for record in records(cluster, name)} == {2}
    sentence = cluster.refused("produce", name, "--partition", 3, text="a\n")
    assert sentence == "topic narrow has no partition 3: it has 3 partitions, from 0"


def test_a_large_file_is_sent_in_pieces_over_all_partitions(
    cluster: CliCluster, tmp_path: Path
) -> None:
    name = topic(cluster, "large", partitions=2)
    lines = [f"{number:099d}" for number in range(20 * CHUNK_BYTES // 100)]
    (tmp_path / "large.txt").write_text("\n".join(lines))
    output = cluster.done("produce", name, "--file", tmp_path / "large.txt")
    assert output.startswith(f"{len(lines):,} records")
    assert sorted(consumed(cluster, name).splitlines()) == lines
    assert len({record["partition"] for record in records(cluster, name)}) == 2


def test_a_missing_file_is_a_one_sentence_error(cluster: CliCluster, tmp_path: Path) -> None:
    name = topic(cluster, "fileless")
    path = tmp_path / "missing.txt"
    assert cluster.refused("produce", name, "--file", path) == f"{path}: No such file or directory"


def test_a_file_called_dash_is_standard_input(cluster: CliCluster) -> None:
    name = topic(cluster, "dash")
    cluster.done("produce", name, "--file", "-", text="a\n")
    assert consumed(cluster, name) == "a\n"


def test_a_file_may_be_a_pipe(cluster: CliCluster) -> None:
    name = topic(cluster, "piped")
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(b"a\nb\n")
    try:
        output = cluster.done("produce", name, "--file", f"/dev/fd/{reading}")
    finally:
        os.close(reading)
    assert output.startswith("2 records")
    assert consumed(cluster, name) == "a\nb\n"


def test_a_misspelt_topic_is_not_created(cluster: CliCluster) -> None:
    topic(cluster, "payments")
    sentence = cluster.refused("produce", "paymnets", text="x\n")
    assert sentence == "there is no topic paymnets: did you mean payments?"
    assert "paymnets" not in cluster.done("topics", "list")


def test_a_record_that_the_topic_refuses_is_a_one_sentence_error(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "tiny", "--config", "max.message.bytes=200")
    sentence = cluster.refused("produce", "tiny", text="x" * 500)
    assert sentence.startswith("tiny-0: ")
    assert "200" in sentence
    assert "MESSAGE_TOO_LARGE" not in sentence


def test_an_empty_separator_is_a_wrong_flag() -> None:
    result = CliRunner().invoke(kdist, ["produce", "any", "--key-separator", ""])
    assert result.exit_code == 2


def test_lines_typed_one_by_one_are_written_one_by_one(cluster: CliCluster) -> None:
    name = topic(cluster, "typed")
    process = produce_process(cluster, name)
    assert process.stdin is not None
    for word in ("first", "second"):
        process.stdin.write(f"{word}\n".encode())
        process.stdin.flush()
        waited = cluster.done("consume", name, "--from-beginning", "--max", 1)
        assert waited == "first\n"
    output, _ = process.communicate(timeout=30)
    assert output.startswith(b"2 records")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_an_interrupt_while_waiting_for_input_ends_it_at_once(
    cluster: CliCluster, number: int, status: int
) -> None:
    name = topic(cluster, f"interrupted-{number}")
    process = produce_process(cluster, name)
    assert process.stdin is not None
    process.stdin.write(b"only\n")
    process.stdin.flush()
    assert cluster.done("consume", name, "--from-beginning", "--max", 1) == "only\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == status
    assert errors.strip() == b"kdist: interrupted; written: 1 record"


def test_what_keeps_records_from_being_acknowledged_is_said_and_how_many_are_left(
    tmp_path: Path,
) -> None:
    with cli_cluster(tmp_path) as cluster:
        words = ("--replication-factor", 2, "--config", "min.insync.replicas=2")
        cluster.done("topics", "create", "starved", *words)
        cluster.stop_broker(2)
        process = produce_process(cluster, "starved")
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"a\nb\n")
        process.stdin.close()
        process.stdin = None
        while b"NOT_ENOUGH_REPLICAS" not in (told := process.stderr.readline()):
            assert told, "it ended first"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    told = b"kdist: interrupted; written: 0 records; not acknowledged: 2 records"
    assert errors.strip().endswith(told)


def test_progress_is_shown_on_a_terminal(cluster: CliCluster, tmp_path: Path) -> None:
    name = topic(cluster, "progress")
    (tmp_path / "file").write_text("line\n" * 1000)
    here, there = pty.openpty()
    done = subprocess.run(
        [*KDIST, "produce", name, "--file", str(tmp_path / "file")],
        cwd=ROOT,
        env={**os.environ, "KDIST_BROKER": cluster.address},
        stdout=subprocess.PIPE,
        stderr=there,
        timeout=30,
    )
    os.close(there)
    shown = os.read(here, 10_000)
    os.close(here)
    assert done.stdout.startswith(b"1,000 records (3.9 KiB) in ")
    assert re.fullmatch(rb"(\r[\d,]+ records?, [\d.]+ \w+\x1b\[K)+\r\x1b\[K", shown)


@pytest.mark.played(by=play)
async def test_lines_sent_before_there_is_no_more_room_are_counted(scene: Scene, /) -> None:
    scene.brokers.fault = lambda *_: Fault(delay_s=1)
    producer = await scene.producer(buffer_memory=40_000, batch_size=1, max_block_ms=100).start()
    sending = Sending(producer, "t", TextLines(Fixed()))
    with pytest.raises(BufferFull):
        await sending.send([b"x" * 10_000] * 9)
    written = await sending.abort()
    assert written == len(scene.brokers.kept[TopicPartition("t", 0)].records) == 3


def produce_process(cluster: CliCluster, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*KDIST, "produce", name],
        cwd=ROOT,
        env={**os.environ, "KDIST_BROKER": cluster.address},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


# More than keys and values


def test_options_say_what_every_record_has(cluster: CliCluster) -> None:
    name = topic(cluster, "decorated", partitions=2)
    words = ["--key", "k", "--header", "a=1", "--header", "a=x=y", "--header", "none"]
    words += ["--header", "empty=", "--timestamp", "2026-11-20T11:40:43.123Z", "--partition", "1"]
    cluster.done("produce", name, *words, text="one\ntwo\n")
    more = {
        "topic": name,
        "partition": 1,
        "timestamp": 1795174843123,
        "key": "k",
        "headers": [["a", "1"], ["a", "x=y"], ["none", None], ["empty", ""]],
    }
    assert records(cluster, name) == [
        {**more, "offset": 0, "value": "one"},
        {**more, "offset": 1, "value": "two"},
    ]


def test_a_key_for_all_decides_the_partition(cluster: CliCluster) -> None:
    name = topic(cluster, "one-key", partitions=5)
    cluster.done("produce", name, "--key", "ann", text="1\n2\n3\n")
    found = {(record["key"], record["partition"]) for record in records(cluster, name)}
    assert found == {("ann", partition_for(b"ann", 5))}


def test_a_text_may_stand_for_null(cluster: CliCluster) -> None:
    name = topic(cluster, "tombs")
    text = "ann=\nbob=NULL\nNULL=x\nNULL=NULLS\n"
    cluster.done("produce", name, "--key-separator", "=", "--null", "NULL", text=text)
    found = [(record["key"], record["value"]) for record in records(cluster, name)]
    assert found == [("ann", ""), ("bob", None), (None, "x"), (None, "NULLS")]
    name = topic(cluster, "keyless-tombs")
    cluster.done("produce", name, "--null", "", text="a\n\nb\n")
    assert [record["value"] for record in records(cluster, name)] == ["a", None, "b"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--header", "=v"], "Invalid value for '--header': '=v' is not NAME=VALUE."),
        (["--header", ""], "Invalid value for '--header': '' is not NAME=VALUE."),
        (["--header", "\udcff=v"], "'--header': a header's name must be UTF-8 text."),
        (["--timestamp", "soon"], "'soon' is neither milliseconds nor ISO 8601."),
        (["--timestamp", "9223372036854775807"], "may be a date or in another unit"),
        (["--timestamp", "1795003200"], "may be a date or in another unit"),
        (["--key", "k", "--key-separator", "="], "Give one of --key and --key-separator."),
        (["--from-json", "--null", "x"], "--null is about lines of text: --from-json needs none."),
        (["--from-json", "--key-separator", "="], "--key-separator is about lines of text"),
        (["--partition", "-1"], "Invalid value for '--partition': -1 is not in the range x>=0."),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_asked(
    words: list[str], sentence: str
) -> None:
    result = CliRunner().invoke(kdist, ["produce", "any", "--broker", "127.0.0.1:1", *words])
    assert result.exit_code == 2
    assert sentence in result.stderr


# Lines of JSON


def test_what_was_consumed_as_json_can_be_produced_again(cluster: CliCluster) -> None:
    name = topic(cluster, "original", partitions=2)
    lines = [
        {"value": "text", "key": "k", "headers": [["h", "1"], ["h", None]], "timestamp": 7},
        {"value": {"hex": "ff00"}, "key": {"hex": "fe"}, "headers": [["h", {"hex": "fd"}]]},
        {"value": None, "key": ""},
        {"value": "", "key": None, "headers": [], "partition": 1},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    assert cluster.done("produce", name, "--from-json", text=text).startswith("4 records")
    original = consumed(cluster, name, "--json")
    copy = topic(cluster, "copy-of-it", partitions=2)
    cluster.done("produce", copy, "--from-json", text=original)
    again = consumed(cluster, copy, "--json").replace(copy, name)
    assert sorted(again.splitlines()) == sorted(original.splitlines())
    first = next(each for each in records(cluster, name) if each["value"] == "text")
    assert (first["timestamp"], first["headers"]) == (7, [["h", "1"], ["h", None]])


def test_options_take_the_place_of_what_a_line_of_json_says(cluster: CliCluster) -> None:
    name = topic(cluster, "overruled", partitions=3)
    line = {"value": "v", "key": "k", "headers": [["h", "own"]], "timestamp": 7, "partition": 2}
    words = ["--key", "K", "--header", "h=all", "--timestamp", "1795003200000", "--partition", "1"]
    cluster.done("produce", name, "--from-json", *words, text=json.dumps(line))
    (found,) = records(cluster, name)
    assert found == {
        "topic": name,
        "partition": 1,
        "offset": 0,
        "timestamp": 1_795_003_200_000,
        "key": "K",
        "value": "v",
        "headers": [["h", "all"], ["h", "own"]],
    }


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"{", "it is no JSON: expecting property name enclosed in double quotes"),
        (b"", "it is no JSON: expecting value"),
        (b"hello", "it is no JSON: expecting value"),
        (b"\xff", "it is not UTF-8 text"),
        (b"[" * 100_000, "its objects are nested too deeply"),
        (b"9" * 5_000, "it is no JSON: exceeds the limit"),
        (b"[]", "it is no JSON object"),
        (b'{"key": "k"}', "it has no value; of a tombstone that is null"),
        (b'{"value": "v", "value": "w"}', "it is no JSON: 'value' is given twice"),
        (b'{"vlaue": "v"}', "a record has no 'vlaue': did you mean value?"),
        (b'{"value": 3}', 'the value must be a string, null, or {"hex": "00ff"}'),
        (b'{"value": {"hex": "0"}}', 'the value must be a string, null, or {"hex": "00ff"}'),
        (b'{"value": {"hex": 3}}', 'the value must be a string, null, or {"hex": "00ff"}'),
        (b'{"value": "v", "key": ["k"]}', "the key must be a string"),
        (b'{"value": "\\ud800"}', "the value must be a string"),
        (b'{"value": "v", "headers": {"a": "b"}}', "headers must be pairs"),
        (b'{"value": "v", "headers": [["a"]]}', "headers must be pairs"),
        (b'{"value": "v", "headers": [["a", 1]]}', "the header's value must be a string"),
        (b'{"value": "v", "headers": [["\\ud800", ""]]}', "a header's name must be UTF-8 text"),
        (b'{"value": "v", "partition": "1"}', "the partition must be a partition's number"),
        (b'{"value": "v", "partition": true}', "the partition must be a partition's number"),
        (b'{"value": "v", "timestamp": -2}', "the timestamp must be milliseconds since 1970"),
        (b'{"value": "v", "timestamp": 1e3}', "the timestamp must be milliseconds since 1970"),
    ],
)
def test_a_line_that_is_no_record_is_refused_in_a_sentence(line: bytes, sentence: str) -> None:
    lines = JsonLines(Fixed(), "any", 1)
    with pytest.raises(UserError) as refused:
        lines.read([b'{"value": "good"}', line], 7)
    assert str(refused.value).startswith(f"line 8: {sentence}")


def test_records_before_one_that_is_too_large_are_counted(cluster: CliCluster) -> None:
    name = topic(cluster, "outsized")
    values = ("a", "b", "x" * 2_000)
    plain = "".join(f"{value}\n" for value in values)
    as_json = "".join(json.dumps({"value": value}) + "\n" for value in values)
    for text, words in ((plain, ["--header", "h=1"]), (as_json, ["--from-json"])):
        sentence = cluster.refused(
            "produce", name, "-X", "max.request.size=1000", *words, text=text
        )
        assert sentence.endswith("; written: 2 records")
    assert len(records(cluster, name)) == 4


def test_a_line_of_json_is_named_with_what_was_written_before(cluster: CliCluster) -> None:
    name = topic(cluster, "half-json")
    good = json.dumps({"value": "x" * 99})
    count = CHUNK_BYTES // len(good)
    text = f"{good}\n" * count + '{"value": "v", "partition": 1}\n'
    sentence = cluster.refused("produce", name, "--from-json", text=text)
    assert sentence == (
        f"line {count + 1}: topic half-json has no partition 1: it has 1 partition, from 0;"
        f" written: {len(records(cluster, name)):,} records"
    )


def test_a_record_without_a_time_is_given_the_present(cluster: CliCluster) -> None:
    name = topic(cluster, "timeless")
    cluster.done("produce", name, "--from-json", text='{"value": "v", "timestamp": -1}')
    (found,) = records(cluster, name)
    assert isinstance(found["timestamp"], int)
    assert found["timestamp"] > 1_700_000_000_000


# Lines


def test_lines_are_whole_wherever_chunks_are_split() -> None:
    text = b"one\n\nthree\nfour"
    for size in range(1, len(text) + 1):
        splitter = Splitter()
        found = [
            line
            for start in range(0, len(text), size)
            for line in splitter.split(text[start : start + size])
        ]
        assert found + splitter.rest() == [b"one", b"", b"three", b"four"]


def test_a_line_without_end_is_refused() -> None:
    splitter = Splitter()
    splitter.split(b"x" * (LINE_BYTES_MAX + 1))
    with pytest.raises(UserError, match="longer than"):
        splitter.split(b"x")
