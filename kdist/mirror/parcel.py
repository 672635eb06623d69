"""A batch of the source made ready for the target (pure): a new header, the same records.

Of the header change: base offset and leader epoch, which the target's broker assigns; producer id,
epoch and sequence, which become the mirror's trace; the bit of transactions, since only what was
committed is read; and for all of these the CRC. The records are not looked at, nor decompressed,
but for batches that a producer may not send, which are built anew:

    records are missing in it          compacted away, or before where the mirror begins
    log append time                    the target would not take it; each record gets that time
    the delete horizon is its time     a cleaner's mark, of no use in another log
"""

from __future__ import annotations

import struct

from kdist.client.consumer.batch import Batch
from kdist.mirror.trace import Run
from kdist.model import NO_EPOCH
from kdist.records.batch import (
    CHECKED_POSITION,
    HEADER_SIZE,
    LENGTH_PREFIX_SIZE,
    Attribute,
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


class Parcel:
    """A batch on its way: `data` is sent, and stands for source offsets up to `end`.

    `start` is `end` less the records in it.
    """

    __slots__ = ("count", "data", "end", "is_rebuilt", "leader_epoch", "timestamp")

    def __init__(self, batch: Batch) -> None:
        header = batch.header
        self.end = batch.end
        self.is_rebuilt = not _may_pass(batch)
        self.data = _rebuilt(batch) if self.is_rebuilt else _copied(batch)
        self.count = len(batch) if self.is_rebuilt else header.record_count
        self.timestamp = header.max_timestamp
        self.leader_epoch = header.partition_leader_epoch

    @property
    def start(self) -> int:
        """Where the run that it belongs to must be."""
        return self.end - self.count

    def __len__(self) -> int:
        return len(self.data)

    def stamp(self, run: Run) -> None:
        """Write the trace, and the CRC over it."""
        _PRODUCER.pack_into(
            self.data, _PRODUCER_POSITION, run.producer_id, run.epoch, run.base_sequence
        )
        seal(self.data, 0, len(self.data))


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
    """The batch's own bytes. They are let go with this: what is fetched is not kept for long."""
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
