"""What a mirror changes in a batch, and what it leaves alone."""

from __future__ import annotations

import pytest

from kdist.client.consumer.batch import Batch
from kdist.mirror.position_marker import mark_of, read_run, run_for
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
