"""Apache Kafka as the judge of kdist's files, and kdist as a reader of Kafka's.

Everything is compared with what Kafka itself says of the same bytes: its dump tool, its recovery of
the same damaged directory, its answers to a consumer, its start on a directory that kdist closed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import HANDED_BACK, HandedBack, KafkaHistory, copy_directory
from peer import kafka_dump
from peer.kafka_damage import (
    DAMAGES,
    append_zeros,
    flip_bit,
    flip_bit_in_second_segment,
    tear_tail,
)
from peer.kafka_dump import Entry, read_dump
from peer.kafka_peer import dump_log_segments
from peer.kdist_directory import BATCHES, opened

from kdist.model import NO_OFFSET, TopicPartition
from kdist.runtime.steps import run_steps
from kdist.storage.epochs import EpochStart, decode_epochs
from kdist.storage.names import flush_mark_in
from kdist.storage.producers import BATCHES_KEPT, ProducerState, decode_snapshot
from kdist.storage.time_lookup import finding_by_timestamp

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("kafka")]

PARTITION = re.compile(r".+-\d+\Z")


def live_partitions(directory: Path) -> list[Path]:
    """The partitions' directories, but those that were deleted and Kafka's own metadata log."""
    return sorted(
        path
        for path in directory.iterdir()
        if path.is_dir() and PARTITION.match(path.name) and path.name != "__cluster_metadata-0"
    )


def live_files(directory: Path, suffix: str) -> list[Path]:
    return sorted(file for path in live_partitions(directory) for file in path.glob(f"*{suffix}"))


def partition_of(path: Path) -> TopicPartition:
    topic, _, number = path.name.rpartition("-")
    return TopicPartition(topic, int(number))


# Kafka's files, before kdist's command line


def run_log(command: str, path: Path, *flags: str) -> tuple[int, list[Any]]:
    """The exit status of `kdist log <command>`, and its lines of JSON."""
    line = [sys.executable, "-m", "kdist.cli", "log", command, str(path), "--json", *flags]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.returncode, list(map(json.loads, done.stdout.splitlines()))


def both_dumps(
    directory: Path, suffix: str, *flags: str
) -> Iterator[tuple[Path, list[Any], list[Entry]]]:
    """Each live file with `suffix`, with what `kdist log dump` and Kafka's tool say of it."""
    files = live_files(directory, suffix)
    status, rows = run_log("dump", directory, *flags)
    assert status == 0
    ours: dict[Path, list[Any]] = {}
    for row in rows:
        ours.setdefault(Path(row["file"]), []).append(row)
    kafkas = read_dump(dump_log_segments(files))
    assert list(kafkas) == files
    assert sum(map(len, kafkas.values())) > 10
    for path, entries in kafkas.items():
        yield path, ours.get(path, []), entries


def test_dump_shows_every_batch_of_kafkas_as_kafkas_own_tool_does(
    kafka_history: KafkaHistory,
) -> None:
    for path, rows, expected in both_dumps(kafka_history.recovered, ".log"):
        assert list(map(as_kafka_dumps, rows)) == expected, path
        assert all(row["is_crc_ok"] for row in rows), path


def as_kafka_dumps(row: Any) -> kafka_dump.Batch:
    """A batch of `kdist log dump` in the terms of Kafka's tool."""
    is_append_time = row["timestamp_type"] == "log_append_time"
    return kafka_dump.Batch(
        base_offset=row["base_offset"],
        last_offset=row["last_offset"],
        record_count=row["record_count"],
        base_sequence=row["base_sequence"],
        last_sequence=row["last_sequence"],
        producer_id=row["producer_id"],
        producer_epoch=row["producer_epoch"],
        leader_epoch=row["leader_epoch"],
        is_transactional=row["is_transactional"],
        is_control=row["is_control"],
        delete_horizon_ms=row["base_timestamp"] if row["has_delete_horizon"] else None,
        position=row["position"],
        timestamp_type="LogAppendTime" if is_append_time else "CreateTime",
        max_timestamp_ms=row["max_timestamp"],
        size=row["size"],
        magic=row["magic"],
        codec=row["codec"],
        crc=row["crc"],
    )


def test_dump_shows_kafkas_indexes_as_kafkas_own_tool_does(kafka_history: KafkaHistory) -> None:
    for path, rows, expected in both_dumps(kafka_history.recovered, ".index", "--index"):
        assert [(row["offset"], row["position"]) for row in rows] == expected, path
    for path, rows, expected in both_dumps(kafka_history.recovered, ".timeindex", "--time-index"):
        assert [(row["timestamp"], row["offset"]) for row in rows] == expected, path


def test_dump_shows_kafkas_producers_as_kafkas_own_tool_does(kafka_history: KafkaHistory) -> None:
    for path, rows, expected in both_dumps(kafka_history.recovered, ".snapshot", "--snapshot"):
        assert [
            (
                row["producer_id"],
                row["producer_epoch"],
                row["coordinator_epoch"],
                None if row["transaction_start"] == NO_OFFSET else row["transaction_start"],
                row["last_timestamp"],
                row["last_sequence"],
                row["last_offset"],
            )
            for row in rows
        ] == [
            (
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.transaction_start,
                producer.last_timestamp_ms,
                producer.last_sequence,
                producer.last_offset,
            )
            for producer in expected
            if isinstance(producer, kafka_dump.ProducerEntry)
        ], path


def found_wrong(report: Any) -> list[tuple[str, str]]:
    """Severity, and partition or file, of whatever is more than good to know."""
    return [
        (each["severity"], str(Path(each["file"]).relative_to(report["path"])))
        for each in report["findings"]
        if each["severity"] != "note"
    ]


def test_verify_finds_nothing_wrong_in_a_directory_that_kafka_closed(
    kafka_history: KafkaHistory,
) -> None:
    status, (report,) = run_log("verify", kafka_history.recovered, "--deep")
    assert (status, found_wrong(report)) == (0, [])
    assert report["records"] > 15_000


def test_verify_finds_nothing_wrong_after_kdist_and_after_kafka_again(
    handed_back: HandedBack,
) -> None:
    for directory in (handed_back.directory, handed_back.kept):
        status, (report,) = run_log("verify", directory, "--deep")
        assert (status, found_wrong(report)) == (0, [])


def test_verify_tells_rot_in_a_damaged_directory_from_what_a_start_mends(
    kafka_history: KafkaHistory,
) -> None:
    status, (report,) = run_log("verify", kafka_history.damaged)
    assert status == 1
    wrong = {(severity, Path(file).parts[0]) for severity, file in found_wrong(report)}
    assert {name for severity, name in wrong if severity == "damage"} == {
        name for name, damage in DAMAGES.items() if damage in (flip_bit, flip_bit_in_second_segment)
    }
    torn = {name for name, damage in DAMAGES.items() if damage in (tear_tail, append_zeros)}
    assert {("stale", name) for name in torn} <= wrong


def test_find_by_time_gives_the_offsets_that_a_consumer_got(kafka_history: KafkaHistory) -> None:
    answers = kafka_history.answers.offset_for_times
    # The command shows what is on the disk, which is more than a consumer gets of this one.
    names = set(compared_by_time(answers)) - {"deleted-records-0"}
    for at in sorted(answers["codec-none-0"])[::8]:
        _, (report,) = run_log("find", kafka_history.recovered, "--time", str(at))
        found = {Path(f["file"]).parent.name: f["record"]["offset"] for f in report["found"]}
        assert {name: found.get(name) for name in names} == {
            name: answers[name][at] for name in names
        }


def compared_by_time(answers: dict[str, dict[int, int | None]]) -> list[str]:
    """Not the compacted ones: Kafka asks one segment only, and compaction may have emptied it."""
    return [name for name in answers if not name.startswith("compacted")]


def test_find_by_offset_gives_the_batch_that_kafkas_dump_tool_has_there(
    kafka_history: KafkaHistory,
) -> None:
    partition = kafka_history.recovered / "codec-mixed-0"
    dumped = read_dump(dump_log_segments(sorted(partition.glob("*.log"))))
    for offset in (0, 19, 20, 777, 1499):
        _, (report,) = run_log("find", partition, "--offset", str(offset))
        (found,) = report["found"]
        batch = found["batch"]
        assert found["record"]["offset"] == offset
        assert (batch["base_offset"], batch["last_offset"], found["position"], batch["size"]) in [
            (b.base_offset, b.last_offset, b.position, b.size)
            for b in dumped[Path(found["file"])]
            if isinstance(b, kafka_dump.Batch)
        ]


# Kafka's damaged directory, mended by both


def differing_files(ours: Path, kafkas: Path) -> list[str]:
    """The segments and indexes of a partition that are not the same in both directories."""
    kept, expected = kept_files(ours), kept_files(kafkas)
    names = sorted(kept.keys() | expected.keys())
    return [f"{ours.name}/{name}" for name in names if kept.get(name) != expected.get(name)]


def kept_files(partition: Path) -> dict[str, bytes]:
    suffixes = (".log", ".index", ".timeindex")
    return {path.name: path.read_bytes() for path in partition.iterdir() if path.suffix in suffixes}


@pytest.fixture(scope="module")
def mended(kafka_history: KafkaHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The damaged directory as kdist's recovery and clean stop leave it."""
    path = copy_directory(kafka_history.damaged, tmp_path_factory.mktemp("ours") / "mended")
    with opened(path):
        pass
    return path


def test_a_killed_directory_is_recovered_to_the_bytes_that_kafkas_own_recovery_keeps(
    kafka_history: KafkaHistory, mended: Path
) -> None:
    partitions = live_partitions(kafka_history.recovered)
    assert set(DAMAGES) <= {path.name for path in partitions}
    differing = [name for path in partitions for name in differing_files(mended / path.name, path)]
    assert differing == []


def test_producers_after_recovery_are_those_that_kafka_found(
    kafka_history: KafkaHistory, mended: Path
) -> None:
    for partition in live_partitions(kafka_history.recovered):
        assert newest_producers(mended / partition.name) == newest_producers(partition), partition


def newest_producers(partition: Path) -> dict[int, ProducerState]:
    """Without their older batches, of which Kafka writes nothing."""
    snapshots = sorted(partition.glob("*.snapshot"))
    if not snapshots:  # Kafka writes none for an empty log
        return {}
    found = decode_snapshot(snapshots[-1].read_bytes(), str(snapshots[-1])).producers
    return {key: each._replace(batches=each.batches[-1:]) for key, each in found.items()}


def test_leader_epochs_after_recovery_are_those_that_kafka_found(
    kafka_history: KafkaHistory, mended: Path
) -> None:
    for name, (_, end_offset) in kafka_history.answers.offsets.items():
        # An epoch at the end is of a leader that has yet to append.
        ours, kafkas = (
            [entry for entry in epochs_in(path / name) if entry.start_offset < end_offset]
            for path in (mended, kafka_history.recovered)
        )
        if name == "kdist-torn-0":
            # Without an index Kafka mends the last segment first, and has the epoch begin there.
            kafkas = [EpochStart(epoch=0, start_offset=0)]
        assert ours == kafkas, name


def epochs_in(partition: Path) -> list[EpochStart]:
    path = partition / "leader-epoch-checkpoint"
    return decode_epochs(path.read_bytes(), str(path)).entries


def test_offsets_by_timestamp_are_those_that_a_consumer_got(
    kafka_history: KafkaHistory, mended: Path
) -> None:
    with opened(copy_directory(mended, mended.parent / "asked")) as directory:
        for name in compared_by_time(kafka_history.answers.offset_for_times):
            expected = kafka_history.answers.offset_for_times[name]
            log = directory.logs[partition_of(Path(name))]
            found = {at: run_steps(finding_by_timestamp(log, at)) for at in expected}
            assert {at: f.offset if f else None for at, f in found.items()} == expected, name


def test_log_start_and_end_offsets_are_those_that_a_consumer_got(
    kafka_history: KafkaHistory, mended: Path
) -> None:
    with opened(copy_directory(mended, mended.parent / "measured")) as directory:
        logs = {str(partition): log for partition, log in directory.logs.items()}
        for name, expected in kafka_history.answers.offsets.items():
            assert (logs[name].start_offset, logs[name].end_offset) == expected, name


# kdist's directory, taken over by Kafka


def test_kafka_serves_every_record_that_kdist_appended(handed_back: HandedBack) -> None:
    for name in HANDED_BACK:
        appended = handed_back.appended[name]
        assert len(appended) == 20 * BATCHES
        assert handed_back.served[name][-len(appended) :] == appended, name


def test_kafka_starts_on_a_directory_of_kdists_without_a_complaint(handed_back: HandedBack) -> None:
    said = handed_back.diagnostics
    assert "Completed load of Log" in said
    complaints = [
        line
        for line in said.splitlines()
        if re.search(r"(WARN|ERROR) .*\.log\b|Recovering unflushed", line)
        and "partition=__cluster_metadata-0" not in line  # which Kafka always recovers
    ]
    assert complaints == []


def test_kafka_leaves_the_files_as_kdist_closed_them(handed_back: HandedBack) -> None:
    differing = [
        name
        for path in live_partitions(handed_back.directory)
        for name in differing_files(path, handed_back.kept / path.name)
        if not name.startswith("__")  # Kafka's own topics grow while it runs
    ]
    assert differing == []


def test_kafka_removes_the_flush_mark_of_each_log_that_it_opens(handed_back: HandedBack) -> None:
    marked = [path.name for path in live_partitions(handed_back.directory) if flush_marks(path)]
    assert {*HANDED_BACK} <= {*marked}
    assert not any(flush_marks(handed_back.kept / name) for name in marked)


def flush_marks(partition: Path) -> list[str]:
    found = (flush_mark_in(path.name) for path in partition.iterdir())
    return [each for each in found if each is not None]


def dump_written(handed_back: HandedBack, suffix: str, *flags: str) -> dict[Path, list[Entry]]:
    """Kafka's dump of the files with `suffix` of the partition that only kdist has written to."""
    files = sorted((handed_back.directory / "kdist-written-0").glob(f"*{suffix}"))
    assert len(files) > 2
    return read_dump(dump_log_segments(files, *flags))


def test_kafkas_dump_tool_finds_in_segments_of_kdists_what_was_appended(
    handed_back: HandedBack,
) -> None:
    dumped = dump_written(handed_back, ".log", "--deep-iteration", "--print-data-log")
    records = [e for f in dumped.values() for e in f if isinstance(e, kafka_dump.Record)]
    assert [(r.offset, r.timestamp_ms, r.header_keys, r.key, r.payload) for r in records] == [
        (r.offset, r.timestamp_ms, ",".join(k for k, _ in r.headers), text(r.key), text(r.value))
        for r in handed_back.appended["kdist-written-0"]
    ]


def text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


@pytest.mark.parametrize("flag", ["--index-sanity-check", "--verify-index-only"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_kafkas_dump_tool_finds_nothing_wrong_with_indexes_of_kdists(
    handed_back: HandedBack, suffix: str, flag: str
) -> None:
    dumped = dump_written(handed_back, suffix, flag)
    assert len(dumped) > 2


def test_kafkas_dump_tool_reads_the_producers_of_kdists_snapshots(handed_back: HandedBack) -> None:
    dumped = dump_written(handed_back, ".snapshot")
    newest = dumped[max(dumped)]
    entries = [e for e in newest if isinstance(e, kafka_dump.ProducerEntry)]
    assert len(entries) == 2 * BATCHES_KEPT
    last = {e.producer_id: (e.producer_epoch, e.last_sequence) for e in entries}
    assert last == {1000: (0, 799), 1001: (1, 799)}
