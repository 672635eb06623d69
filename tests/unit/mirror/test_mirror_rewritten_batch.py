"""What a mirror changes in a batch, its position above all, and what it leaves alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.client.consumer.batch import Batch
from kdist.errors import UserError
from kdist.mirror.position_marker import OFFSETS_MAX, Run, last_run, mark_of, read_run, run_for
from kdist.mirror.rewritten_batch import RewrittenBatch
from kdist.model import TopicPartition
from kdist.records.batch import (
    CHECKED_POSITION,
    HEADER,
    HEADER_SIZE,
    BatchHeader,
    crc_fault,
    producer_fault,
    read_header,
    seal,
    stamp_append_time,
)
from kdist.records.build import build_batch, read_batch
from kdist.records.compression import Codec
from kdist.records.record import Record
from kdist.storage.producers import ProducerStates

PARTITION = TopicPartition("t", 0)
MARK = mark_of("c", PARTITION)
COUNT = 9


def built(codec: Codec = Codec.NONE, **more: object) -> bytearray:
    return build_batch(
        [f"value {n}".encode() for n in range(COUNT)],
        [None if n % 2 else f"key {n}".encode() for n in range(COUNT)],
        [(("h", b"x"),) for _ in range(COUNT)],
        [1000 + n for n in range(COUNT)],
        timestamp_ms=1000,
        codec=codec,
        base_offset=500,
        leader_epoch=4,
        **more,  # type: ignore[arg-type]
    )


def changed(data: bytearray, **fields: int) -> bytearray:
    HEADER.pack_into(data, 0, *read_header(data)._replace(**fields))
    seal(data, 0, len(data))
    return data


def rewritten_of(data: bytearray, start: int = 500) -> tuple[RewrittenBatch, BatchHeader]:
    """The batch as the target gets it, in a buffer that has others before it."""
    buffer = bytes(33) + bytes(data) + b"more"
    rewritten = RewrittenBatch(Batch(PARTITION, read_header(data), buffer, 33, start))
    rewritten.stamp(run_for(MARK, None, rewritten.start, rewritten.end))
    header = read_header(rewritten.data)
    assert crc_fault(rewritten.data, 0, header) is None
    assert producer_fault(header) is None
    assert (header.base_offset, header.partition_leader_epoch) == (0, -1)
    return rewritten, header


def without_offsets(records: list[Record]) -> list[Record]:
    return [record._replace(offset=0) for record in records]


MARKED = TopicPartition("flights", 3)
POSITION_MARK = mark_of("cluster-1", MARKED)
WRAP = 1 << 31

offsets = st.one_of(
    st.integers(0, OFFSETS_MAX - 2000),
    st.integers(1, 5).flatmap(lambda turn: st.integers(turn * WRAP - 50, turn * WRAP + 50)),
)
lengths = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 20), st.integers(0, 2)), min_size=1, max_size=12
)


def header_of(run: Run, count: int) -> BatchHeader:
    """The header that the broker gets for a batch of this run."""
    batch = build_batch(
        [b""] * count,
        timestamp_ms=1,
        producer_id=run.producer_id,
        producer_epoch=run.epoch,
        base_sequence=run.base_sequence,
    )
    return read_header(batch)


@pytest.mark.parametrize("codec", list(Codec))
def test_records_are_copied_byte_for_byte(codec: Codec) -> None:
    data = built(codec, producer_id=77, producer_epoch=3, base_sequence=12)
    rewritten, header = rewritten_of(data)
    assert not rewritten.is_rebuilt
    assert rewritten.data[HEADER_SIZE:] == data[HEADER_SIZE:]
    assert rewritten.data[CHECKED_POSITION:43] == data[CHECKED_POSITION:43]
    assert (rewritten.start, rewritten.end, rewritten.count) == (500, 500 + COUNT, COUNT)
    run = read_run(header, MARK)
    assert run is not None
    assert run.next_offset == 500 + COUNT
    assert rewritten.leader_epoch == 4


def test_the_transactional_bit_is_cleared() -> None:
    data = built(producer_id=77, producer_epoch=3, base_sequence=12, is_transactional=True)
    rewritten, header = rewritten_of(data)
    assert not header.is_transactional
    assert not rewritten.is_rebuilt


def test_a_batch_with_gaps_from_compaction_is_rebuilt_without_them() -> None:
    data = changed(built(Codec.LZ4), last_offset_delta=COUNT + 4)
    rewritten, header = rewritten_of(data)
    assert rewritten.is_rebuilt
    assert (header.record_count, header.last_offset_delta) == (COUNT, COUNT - 1)
    assert header.codec == Codec.LZ4
    assert (rewritten.start, rewritten.end) == (505, 500 + COUNT + 5)
    run = read_run(header, MARK)
    assert run is not None
    assert run.next_offset == 500 + COUNT + 5
    assert without_offsets(read_batch(rewritten.data)) == without_offsets(read_batch(data))


def test_a_mirror_that_begins_within_a_batch_takes_the_rest_of_it() -> None:
    data = built(Codec.GZIP)
    rewritten, _ = rewritten_of(data, start=503)
    assert (rewritten.start, rewritten.end, rewritten.count) == (503, 500 + COUNT, COUNT - 3)
    assert without_offsets(read_batch(rewritten.data)) == without_offsets(read_batch(data)[3:])


def test_log_append_time_becomes_the_time_of_each_record() -> None:
    data = built()
    stamp_append_time(data, 0, 123_456)
    rewritten, header = rewritten_of(data)
    assert not header.is_log_append_time
    assert {record.timestamp for record in read_batch(rewritten.data)} == {123_456}
    assert rewritten.timestamp == 123_456


def test_a_delete_horizon_is_not_copied() -> None:
    data = built()
    data = changed(data, attributes=read_header(data).attributes | 1 << 6)
    rewritten, header = rewritten_of(data)
    assert rewritten.is_rebuilt
    assert not header.has_delete_horizon
    assert without_offsets(read_batch(rewritten.data)) == without_offsets(read_batch(data))


@given(start=offsets, count=st.integers(1, 1000))
def test_a_batch_says_where_it_ends_in_the_source(start: int, count: int) -> None:
    run = run_for(POSITION_MARK, None, start, start + count)
    read = read_run(header_of(run, count), POSITION_MARK)
    assert read == run._replace(next_offset=start + count)


@given(start=offsets, steps=lengths)
def test_a_broker_accepts_each_of_a_mirrors_batches_once(
    start: int, steps: list[tuple[int, int, int]]
) -> None:
    """Each step: unused offsets before a batch, its records, and unused offsets within it."""
    states, run, end, target_end = ProducerStates(), None, start, 0
    for gap, count, inside in steps:
        end += gap + count + inside
        run = run_for(POSITION_MARK, run, end - count, end)
        header = header_of(run, count)
        assert states.check(header) is None
        states.append(header, target_end)
        duplicate = states.check(header)
        assert duplicate is not None
        assert duplicate.first_offset == target_end
        target_end += count
        run = run._replace(next_offset=end)
        assert read_run(header, POSITION_MARK) == run


def test_batches_without_a_gap_are_one_run_and_a_gap_begins_another() -> None:
    first = run_for(POSITION_MARK, None, 100, 110)._replace(next_offset=110)
    assert run_for(POSITION_MARK, first, 110, 120) is first
    second = run_for(POSITION_MARK, first, 111, 120)
    assert second.producer_id != first.producer_id
    assert second == run_for(
        POSITION_MARK, None, 111, 120
    )  # every mirror that gets there chooses the same


def test_a_run_ends_before_its_sequence_becomes_ambiguous() -> None:
    first = run_for(POSITION_MARK, None, WRAP - 10, WRAP)._replace(next_offset=WRAP)
    assert first.epoch == 0
    second = run_for(POSITION_MARK, first, WRAP, WRAP + 5)
    assert (second.epoch, second.base_sequence) == (1, 0)
    across = run_for(POSITION_MARK, None, WRAP - 10, WRAP + 5)
    assert read_run(header_of(across, 15), POSITION_MARK) == across._replace(next_offset=WRAP + 5)


def test_batches_of_other_producers_carry_no_position() -> None:
    ours = header_of(run_for(POSITION_MARK, None, 0, 5), 5)
    other = mark_of("cluster-2", MARKED)
    assert other != POSITION_MARK
    assert read_run(ours, other) is None
    for producer_id in (-1, 0, 7, (1 << 62) - 1):
        assert read_run(ours._replace(producer_id=producer_id), POSITION_MARK) is None
    assert last_run([ours, ours._replace(producer_id=7)], POSITION_MARK) == read_run(
        ours, POSITION_MARK
    )
    assert last_run([], POSITION_MARK) is None


def test_marks_differ_by_cluster_topic_and_partition() -> None:
    names = [("a", "t", 0), ("b", "t", 0), ("a", "u", 0), ("a", "t", 1), ("a", "t/1", 0)]
    assert len({mark_of(c, TopicPartition(t, n)) for c, t, n in names}) == len(names)


def test_offsets_that_a_header_cannot_hold_are_refused() -> None:
    run_for(POSITION_MARK, None, OFFSETS_MAX - 1, OFFSETS_MAX)
    with pytest.raises(UserError, match="too large for a mirror to keep"):
        run_for(POSITION_MARK, None, OFFSETS_MAX, OFFSETS_MAX + 1)


def test_how_old_a_batch_is_goes_by_its_first_record_or_by_when_it_was_appended() -> None:
    data = built()
    assert rewritten_of(data)[0].timestamp == 1000  # the last record has 1008
    appended = bytearray(data)
    stamp_append_time(appended, 0, 5_000)
    assert rewritten_of(appended)[0].timestamp == 5_000
