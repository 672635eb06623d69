"""A produced batch in plain Python: the reference for `_compiled_produced.py`.

Both modules have the same functions, with the same outcome for the same input. Nearly every produce
has one batch, for which these functions are enough: it is found in its request and checked,
measured with others for the same log, and given its offset. A header's layout is in `batch.py`.

Each record is looked at, unless they are compressed: a batch with the right checksum may still have
broken ones, because of a fault in its producer, which would stop every consumer that meets them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from kdist.errors import CorruptRecords
from kdist.model import NO_TIMESTAMP
from kdist.records._reference import decode_numbers, find_null_key
from kdist.records.batch import (
    HEADER,
    HEADER_SIZE,
    LENGTH_PREFIX_SIZE,
    Batch,
    BatchHeader,
    crc_fault,
    has_likely_max_timestamp,
    header_fault,
    producer_fault,
)
from kdist.wire.primitives import Buffer

TAGS_BYTES = 3  # empty tagged sections of the partition, the topic and the request: three zeros

_INT32 = struct.Struct(">i")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")


class BatchTotals(NamedTuple):
    """Totals of several batches: bytes, offsets, records, the newest timestamp in ms."""

    size: int
    offset_count: int
    record_count: int
    newest_ms: int
    has_producers: bool
    """Whether any has a producer id."""


class BodySummary(NamedTuple):
    """What a walk over the records of a body finds besides that they are whole."""

    newest_ms: int
    """The largest timestamp."""
    lacks_keys: bool
    """Whether a record has no key."""


def find_batch(
    frame: memoryview, position: int, is_flexible: bool, size_max: int, codec_max: int
) -> Batch | None:
    """`check_batch` of a Produce's last records, whose size field is at `position` of the frame.

    The size is an int32; in a flexible version an unsigned varint, one more than the size, and
    three empty tagged sections follow the records. None if anything else follows them.
    """
    end = len(frame)
    if not is_flexible:
        start = position + _INT32.size
        is_found = start <= end and _INT32.unpack_from(frame, position)[0] == end - start
    else:
        end -= TAGS_BYTES
        start, size, shift, byte = position, 0, 0, 0x80
        while byte >= 0x80 and start < end and shift < 35:  # as a decoder reads it
            byte = frame[start]
            size |= (byte & 0x7F) << shift
            start, shift = start + 1, shift + 7
        is_found = byte < 0x80 and size - 1 == end - start and not any(frame[end:])
    return check_batch(frame, start, end, size_max, codec_max) if is_found else None


def check_batch(
    buffer: memoryview, start: int, end: int, size_max: int, codec_max: int
) -> Batch | None:
    """The single batch from `start` to `end`, if it is valid for a log with plain `validate.Rules`.

    It must have at most `size_max` bytes, a codec up to `codec_max` and a writable buffer, and be
    as a producer has to send it, down to its records if they are not compressed. Its max timestamp
    must be that of its records or, if it is compressed, be likely. None for anything else.
    """
    size = end - start
    if not HEADER_SIZE <= size <= size_max or buffer.readonly:
        return None
    header = BatchHeader._make(HEADER.unpack_from(buffer, start))
    if (
        header_fault(header, size) is None
        and header.batch_length == size - LENGTH_PREFIX_SIZE
        and producer_fault(header) is None
        and 0 <= header.attributes <= codec_max  # a codec, and no other bit
        and has_likely_max_timestamp(header)
        and crc_fault(buffer, start, header) is None
        and (header.codec or _is_newest(header, buffer[start + HEADER_SIZE : end]))
    ):
        return Batch(header, buffer[start:end])
    return None


def _is_newest(header: BatchHeader, body: memoryview) -> bool:
    """Whether the records, which are not compressed, are whole, and have the max timestamp."""
    summary = body_summary(body, header.record_count, header.base_timestamp)
    return summary is not None and summary.newest_ms == header.max_timestamp


def body_summary(body: Buffer, count: int, base_timestamp: int) -> BodySummary | None:
    """A summary of exactly `count` records, at least one; None if they cannot be read.

    Their lengths must fit into each other, their offset deltas count from 0 on, and their
    timestamps have 64 bits.
    """
    try:
        offsets, timestamps = decode_numbers(body, count, 0, base_timestamp)
        if not offsets or offsets[-1] != count - 1:  # that they increase was checked
            return None
        return BodySummary(max(timestamps), find_null_key(body, count) is not None)
    except CorruptRecords:
        return None


def batch_totals(batches: Sequence[Batch]) -> BatchTotals:
    """The totals of batches that a log is about to append."""
    size = offset_count = record_count = 0
    newest_ms, has_producers = NO_TIMESTAMP, False
    for header, data in batches:
        size += len(data)
        offset_count += header.last_offset_delta + 1
        record_count += header.record_count
        newest_ms = max(newest_ms, header.max_timestamp)
        has_producers |= header.producer_id >= 0
    return BatchTotals(size, offset_count, record_count, newest_ms, has_producers)


def assign(batches: Sequence[Batch], offset: int, leader_epoch: int) -> list[int]:
    """Write into the batches what the leader assigns: offsets from `offset` on, and its epoch.

    Returns each batch's base offset. The CRC covers neither, and stays valid. Raises `BufferError`
    for a read-only buffer.
    """
    offsets = []
    for header, data in batches:
        if memoryview(data).readonly:
            raise BufferError("a batch in the log's hands cannot be written to")
        _BASE_OFFSET.pack_into(data, 0, offset)
        _LEADER_EPOCH.pack_into(data, LENGTH_PREFIX_SIZE, leader_epoch)
        offsets.append(offset)
        offset += header.last_offset_delta + 1
    return offsets
