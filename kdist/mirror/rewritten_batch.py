"""A batch of the source prepared for the target (pure): a new header, the same records.

The header's changes: base offset and leader epoch, which the target's broker assigns; producer id,
epoch and sequence, which become the position marker; the transactional bit, which is cleared, since
only committed records are read; and so the CRC. The records are neither decoded nor decompressed,
except in batches that a producer may not send as they are. These are rebuilt:

    records are missing         compacted away, or before the offset at which the mirror begins
    log append time             refused by brokers; each record gets that time as its own
    a delete horizon is set     written by the log cleaner, and meaningless in another log
"""

from __future__ import annotations

import struct

from kdist.client.consumer.batch import Batch
from kdist.mirror.position_marker import Run
from kdist.model import NO_EPOCH
from kdist.records.batch import (
    CHECKED_POSITION,
    HEADER_SIZE,
    LENGTH_PREFIX_SIZE,
    Attribute,
    BatchHeader,
    seal,
)
from kdist.records.build import build_batch
from kdist.records.compression import Codec

_TRANSACTIONAL = int(Attribute.TRANSACTIONAL)
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")  # id, epoch, base sequence
_PRODUCER_POSITION = 43


class RewrittenBatch:
    """A batch to send: `data`, which covers the source's offsets up to `end`, exclusive.

    `start` is `end` less the number of records.
    """

    __slots__ = ("count", "data", "end", "is_rebuilt", "leader_epoch", "timestamp")

    def __init__(self, batch: Batch) -> None:
        header = batch.header
        self.end = batch.end
        self.is_rebuilt = not _may_pass(batch)
        self.data = _rebuilt(batch) if self.is_rebuilt else _copied(batch)
        self.count = len(batch) if self.is_rebuilt else header.record_count
        self.timestamp = first_timestamp(header)
        self.leader_epoch = header.partition_leader_epoch

    @property
    def start(self) -> int:
        """The `next_offset` that a run must have for this batch to continue it."""
        return self.end - self.count

    def __len__(self) -> int:
        return len(self.data)

    def stamp(self, run: Run) -> None:
        """Write the position marker, and the CRC over it."""
        _PRODUCER.pack_into(
            self.data, _PRODUCER_POSITION, run.producer_id, run.epoch, run.base_sequence
        )
        seal(self.data, 0, len(self.data))


def first_timestamp(header: BatchHeader) -> int:
    """The timestamp of a batch's first record."""
    return header.max_timestamp if header.is_log_append_time else header.base_timestamp


def _may_pass(batch: Batch) -> bool:
    header = batch.header
    return (
        header.record_count == header.last_offset_delta + 1
        and batch.start == header.base_offset
        and batch.end == header.next_offset
        and not header.is_log_append_time
        and not header.has_delete_horizon
    )


def _copied(batch: Batch) -> bytearray:
    """A copy of the batch's bytes, so that the buffer of the whole fetch can be freed."""
    data, header = bytearray(batch.encoded), batch.header
    _BASE_OFFSET.pack_into(data, 0, 0)
    _LEADER_EPOCH.pack_into(data, LENGTH_PREFIX_SIZE, NO_EPOCH)
    if header.is_transactional:
        _ATTRIBUTES.pack_into(data, CHECKED_POSITION, header.attributes & ~_TRANSACTIONAL)
    assert len(data) >= HEADER_SIZE
    return data


def _rebuilt(batch: Batch) -> bytearray:
    records = batch.raw_records()
    return build_batch(
        [each.value for each in records],
        [each.key for each in records],
        [each.headers for each in records],
        [each.timestamp for each in records],
        timestamp_ms=batch.header.max_timestamp,
        codec=Codec(batch.header.codec),
    )
