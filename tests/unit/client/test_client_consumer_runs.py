"""A run of small batches is read at once: only the time that it takes differs."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.client.consumer.batch import CorruptFetch, NotDecoded
from kdist.client.consumer.batch_run import RUN_BYTES_MAX, BatchRun
from kdist.client.consumer.iteration import Iteration
from kdist.client.consumer.opening import Opening, Ready, open_fetched
from kdist.client.consumer.partition import CompletedFetches, Partition
from kdist.model import TopicPartition
from kdist.protocol.fetch import AbortedTransaction
from kdist.records.batch import HEADER_SIZE, seal, stamp_append_time
from kdist.records.build import build_batch
from kdist.records.compression import Codec

KEY = TopicPartition("clicks", 3)
NOW = 1_700_000_000_000


def numbered(first: int, count: int, **options: Any) -> bytearray:
    numbers = range(first, first + count)
    return build_batch(
        [b"%d" % number for number in numbers],
        [b"k%d" % number for number in numbers],
        [[("h", b"%d" % number)] for number in numbers],
        [NOW + number * 7 % 5 for number in numbers],
        timestamp_ms=NOW,
        base_offset=first,
        **options,
    )


def opened(data: bytes | bytearray, position: int = 0, **options: Any) -> list[Ready]:
    options = {"run_bytes_max": RUN_BYTES_MAX} | options
    return list(open_fetched(data, Opening(KEY, position, **options)))


def completed_of(
    data: bytes | bytearray, position: int = 0, **options: Any
) -> tuple[CompletedFetches, Partition]:
    completed, partition = CompletedFetches(), Partition(KEY)
    partition.seek(position)
    completed.put(partition, opened(data, position, **options))
    return completed, partition


def log_append_time(first: int, count: int) -> bytearray:
    batch = numbered(first, count)
    stamp_append_time(batch, 0, NOW + first)
    return batch


def transactional(first: int, count: int) -> bytearray:
    return numbered(first, count, producer_id=7, base_sequence=0, is_transactional=True)


KINDS = {
    "plain": numbered,
    "of another epoch": lambda first, count: numbered(first, count, leader_epoch=4),
    "compressed": lambda first, count: numbered(first, count, codec=Codec.GZIP),
    "transactional": transactional,
    "control": lambda first, _: numbered(first, 1, is_control=True),
    "log append time": log_append_time,
    "behind a gap": lambda first, count: numbered(first + 3, count),
}


def log_of(kinds: list[tuple[str, int]]) -> bytes:
    data, end = b"", 0
    for kind, count in kinds:
        data += KINDS[kind](end, count)
        end = opened(data)[-1].next_offset
    return data


logs = st.lists(
    st.tuples(st.just("plain") | st.sampled_from(sorted(KINDS)), st.integers(1, 4)),
    min_size=1,
    max_size=12,
).map(log_of)


def fields(record: Any) -> tuple[Any, ...]:
    whose = record.topic, record.partition, record.leader_epoch, record.timestamp_type
    return record.offset, record.timestamp, record.key, record.value, record.headers, *whose


@given(log=logs, position=st.integers(0, 20), is_committed_only=st.booleans())
def test_records_are_those_of_the_single_batches(
    log: bytes, position: int, is_committed_only: bool
) -> None:
    aborted = [AbortedTransaction(producer_id=7, first_offset=0)] if is_committed_only else None
    options: dict[str, Any] = {"aborted": aborted, "decoders": (bytes.decode, int)}
    alone = opened(log, position, run_bytes_max=0, **options)
    completed, partition = completed_of(log, position, **options)
    found = [fields(record) for record in completed.take_records(1000)]
    assert found == [
        fields(record)
        for each in alone
        if each.batch is not None
        for record in each.batch.records()
    ]
    assert partition.position == max([position, *(each.next_offset for each in alone)])
    assert partition.ready_bytes == 0


@given(log=logs, wanted=st.lists(st.integers(0, 7), min_size=1, max_size=40))
def test_records_and_batches_may_be_taken_in_turn(log: bytes, wanted: list[int]) -> None:
    """0 takes two batches; any other number takes that many records."""
    completed, partition = completed_of(log)
    expected = [record.offset for record in completed_of(log)[0].take_records(1000)]
    behind = [*expected[1:], 1 << 60]
    found: list[int] = []
    for count in wanted:
        if count:
            found += [record.offset for record in completed.take_records(count)]
        else:
            found += [offset for batch in completed.take_batches(2) for offset in batch.offsets()]
        assert found == expected[: len(found)]
        if found:
            assert partition.position is not None
            assert found[-1] < partition.position <= behind[len(found) - 1]
    found += [record.offset for record in completed.take_records(1000)]
    assert found == expected
    assert partition.ready_bytes == 0


def test_poll_batches_returns_each_batch_as_it_is_in_the_log() -> None:
    batches = [numbered(0, 3), numbered(3, 1), numbered(4, 2)]
    completed, partition = completed_of(b"".join(batches), 1)
    assert isinstance(partition.ready[0].batch, BatchRun)
    found = completed.take_batches(2) + completed.take_batches(2)
    assert [bytes(each.encoded) for each in found] == batches
    assert [each.values() for each in found] == [[b"1", b"2"], [b"3"], [b"4", b"5"]]
    assert [each.keys() for each in found] == [[b"k1", b"k2"], [b"k3"], [b"k4", b"k5"]]
    assert [each.timestamps() for each in found[1:]] == [[NOW + 1], [NOW + 3, NOW]]
    assert pickle.loads(pickle.dumps(found[2])).values() == [b"4", b"5"]
    assert (partition.position, partition.ready_bytes) == (6, 0)


def test_a_large_batch_is_not_part_of_a_run() -> None:
    large = build_batch([bytes(RUN_BYTES_MAX)], timestamp_ms=NOW)
    (one, two) = opened(large + numbered(1, 1))
    assert not isinstance(one.batch, BatchRun)
    assert (one.next_offset, two.next_offset) == (1, 2)


def test_a_record_of_a_run_can_be_pickled() -> None:
    completed, _ = completed_of(numbered(0, 1) + numbered(1, 2))
    for record in completed.take_records(5):
        assert fields(pickle.loads(pickle.dumps(record))) == fields(record)


def test_a_wrong_checksum_is_raised_after_the_whole_batches() -> None:
    broken = numbered(3, 1)
    broken[-1] ^= 1
    completed, partition = completed_of(numbered(0, 2) + numbered(2, 1) + broken + numbered(4, 1))
    assert [record.value for record in completed.take_records(9)] == [b"0", b"1", b"2"]
    with pytest.raises(CorruptFetch, match="clicks-3, at offset 3: CRC is"):
        completed.take_records(9)
    assert partition.position == 3


@pytest.mark.parametrize("is_by_batch", [False, True])
def test_damage_below_a_valid_checksum_is_raised_after_the_whole_batches(
    is_by_batch: bool,
) -> None:
    broken = numbered(3, 1)
    broken[HEADER_SIZE] = 0  # the length of its record
    seal(broken, 0, len(broken))
    completed, partition = completed_of(numbered(0, 2) + numbered(2, 1) + broken + numbered(4, 1))
    if is_by_batch:
        found = completed.take_batches(9)
        assert [each.values() for each in [*found[:2], found[3]]] == [[b"0", b"1"], [b"2"], [b"4"]]
        with pytest.raises(CorruptFetch, match="clicks-3, at offset 3: "):
            found[2].values()
        return
    assert [record.value for record in completed.take_records(9)] == [b"0", b"1", b"2"]
    with pytest.raises(CorruptFetch, match="clicks-3, at offset 3: "):
        completed.take_records(9)
    assert partition.position == 3


def test_records_before_one_that_cannot_be_decoded_are_returned() -> None:
    def refuse_three(value: bytes) -> int:
        if value == b"3":
            raise ValueError("three")
        return int(value)

    log = numbered(0, 2) + numbered(2, 3) + numbered(5, 1)
    completed, partition = completed_of(log, decoders=(None, refuse_three))
    assert [record.value for record in completed.take_records(9)] == [0, 1, 2]
    with pytest.raises(NotDecoded, match="clicks-3, offset 3"):
        completed.take_records(9)
    assert partition.position == 3
    assert [each.offsets() for each in completed.take_batches(9)] == [range(3, 5), range(5, 6)]
    assert partition.ready_bytes == 0


@given(st.integers(0, 6))
def test_iteration_over_a_run_tracks_its_position(count: int) -> None:
    completed, partition = completed_of(b"".join(numbered(first, 2) for first in (0, 2, 4)))
    iteration = Iteration()
    iteration.begin(*completed.take_run(10))  # type: ignore[arg-type]
    left = iteration.left
    for _ in range(count):
        next(left)
    iteration.settle()
    assert partition.position == count
    assert [record.offset for record in iteration.rest(10)] == list(range(count, 6))
