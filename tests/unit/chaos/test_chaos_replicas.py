"""What stopped brokers' logs say."""

from __future__ import annotations

from pathlib import Path

from kdist.records.batch import HEADER, HEADER_SIZE, LENGTH_PREFIX_SIZE, BatchHeader, read_header
from tests.chaos.replicas import Writers, broken_sequences, live_replicas, read_logs


def batch(offset: int, sequence: int, count: int = 1, producer: int = 7, epoch: int = 0) -> bytes:
    header = BatchHeader(
        base_offset=offset,
        batch_length=HEADER_SIZE - LENGTH_PREFIX_SIZE,
        partition_leader_epoch=0,
        magic=2,
        crc=0,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )
    return HEADER.pack(*header)


ONE, TWO, THREE = batch(0, 0, 2), batch(2, 2), batch(3, 3)


def replica(root: Path, broker: str, *segments: bytes) -> Path:
    directory = root / broker / "chaos-0"
    directory.mkdir(parents=True)
    for number, content in enumerate(segments):
        (directory / f"{number:020}.log").write_bytes(content)
    return directory.parent


def faults(*directories: Path) -> list[str]:
    return read_logs(directories, "chaos").faults


def test_replicas_may_have_begun_their_segments_at_different_offsets(tmp_path: Path) -> None:
    parted, whole = (
        replica(tmp_path, "1", ONE + TWO, THREE),
        replica(tmp_path, "2", ONE, TWO + THREE),
    )
    assert faults(parted, whole) == []


def test_replicas_that_hold_different_bytes_differ(tmp_path: Path) -> None:
    other = batch(3, 3, producer=8)
    one, two = replica(tmp_path, "1", ONE, TWO, THREE), replica(tmp_path, "2", ONE, TWO, other)
    assert faults(one, two) == ["chaos-0: its replicas differ (183, 183 bytes)"]


def test_a_replica_that_is_shorter_differs(tmp_path: Path) -> None:
    one, two = replica(tmp_path, "1", ONE, TWO, THREE), replica(tmp_path, "2", ONE, TWO)
    assert faults(one, two) == ["chaos-0: its replicas differ (183, 122 bytes)"]


def test_a_replica_that_is_not_there_is_missing(tmp_path: Path) -> None:
    (tmp_path / "2").mkdir()
    one = replica(tmp_path, "1", ONE)
    assert faults(one, tmp_path / "2") == ["chaos-0 is in 1 of 2 log directories"]


def test_what_was_moved_away_and_is_being_deleted_is_no_replica(tmp_path: Path) -> None:
    one, two = replica(tmp_path, "1", ONE), replica(tmp_path, "2", ONE)
    unique = "0" * 32
    (two / f"moved-1.{unique}-delete").mkdir()
    (two / f"moved-2.{unique}-stray").mkdir()
    (two / "meta.properties").touch()
    assert live_replicas(two) == ["chaos-0"]
    assert faults(one, two) == []


def test_each_record_has_the_producer_of_its_batch(tmp_path: Path) -> None:
    written = replica(tmp_path, "1", ONE + batch(2, 0, 2, producer=9, epoch=3))
    writers = read_logs([written], "chaos").writers[0]
    assert [writers.at(offset) for offset in range(4)] == [(7, 0), (7, 0), (9, 3), (9, 3)]
    assert Writers([]).at(0) is None


def broken(*batches: bytes) -> list[str]:
    return list(broken_sequences([read_header(each) for each in batches]))


def test_a_producers_sequences_follow_one_another_within_its_epoch() -> None:
    assert broken(ONE, batch(2, 0, producer=8), TWO, batch(4, 0, epoch=1), THREE) == []


def test_a_sequence_that_comes_again_or_is_left_out_is_broken() -> None:
    assert broken(ONE, TWO, TWO) == ["(7, 0) has sequence 2 at 2, not 3"]
    assert broken(ONE, THREE) == ["(7, 0) has sequence 3 at 3, not 2"]
    assert broken(TWO) == ["(7, 0) has sequence 2 at 2, not 0"]


def test_batches_without_a_producer_id_have_no_sequences() -> None:
    assert broken(batch(0, -1, producer=-1, epoch=-1), batch(1, -1, producer=-1, epoch=-1)) == []
