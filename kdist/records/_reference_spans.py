"""Scanning a log many batches at a time, in plain Python: the reference for `_compiled_spans.py`.

Both modules have the same functions, with the same outcome for the same input. A scan, such as the
recovery after a crash, needs to know only that most batches are valid: so it gets a summary of as
many successive batches as it need not tell apart. A header's layout is in `batch.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from kdist.records.batch import (
    HEADER_SIZE,
    Attribute,
    BatchHeader,
    crc_fault,
    header_fault,
    read_header,
)
from kdist.records.record import INT64_MAX
from kdist.wire.primitives import Buffer


class BatchSpan(NamedTuple):
    """A summary of successive valid batches, with no gap between offsets and one leader epoch."""

    size: int
    last_size: int  # of the last batch
    base_offset: int
    last_offset: int
    leader_epoch: int
    batch_count: int
    record_count: int
    newest_ms: int  # the largest timestamp
    newest_offset: int  # the last offset of the first batch with that timestamp
    has_producers: bool
    """Whether any batch has a producer id."""


def find_span(
    buffer: memoryview,
    position: int,
    end: int,
    offset_before: int,
    offset_max: int,
    trusted_offset: int,
    room_bytes: int,
) -> BatchSpan | None:
    """The longest span from `position` on; None if the first batch is invalid or incomplete.

    `buffer` is read from a file that ends at `end` (counted as `position` is). All offsets must be
    above `offset_before`, and at most `offset_max`. Of a batch that ends below `trusted_offset`
    only the header must be in `buffer`; of all others the CRC is checked. The span ends with the
    first batch that begins more than `room_bytes` after its start, or before that one.
    """
    size = last_size = batch_count = record_count = 0
    first: BatchHeader | None = None
    newest: BatchHeader | None = None
    has_producers = False
    while size - last_size <= room_bytes or first is None:
        at = position + size
        header = _sound_header(buffer, at, end, offset_max, trusted_offset)
        if header is None or header.base_offset <= offset_before:
            break
        if first is None or newest is None:
            first = newest = header
        elif not _continues(first, header, offset_before):
            break
        elif header.max_timestamp > newest.max_timestamp:
            newest = header
        last_size = header.size
        size += last_size
        offset_before = header.last_offset
        batch_count += 1
        record_count += header.record_count
        has_producers |= header.producer_id >= 0
    if first is None or newest is None:
        return None
    return BatchSpan(
        size,
        last_size,
        first.base_offset,
        offset_before,
        first.partition_leader_epoch,
        batch_count,
        record_count,
        newest.max_timestamp,
        newest.last_offset,
        has_producers,
    )


def _continues(first: BatchHeader, header: BatchHeader, offset_before: int) -> bool:
    return (
        header.base_offset == offset_before + 1
        and header.partition_leader_epoch == first.partition_leader_epoch
    )


def _sound_header(
    buffer: memoryview, at: int, end: int, offset_max: int, trusted_offset: int
) -> BatchHeader | None:
    if len(buffer) - at < HEADER_SIZE:
        return None
    header = read_header(buffer, at)
    if header_fault(header, end - at) or header.last_offset > offset_max:
        return None
    if header.last_offset >= trusted_offset and (
        header.size > len(buffer) - at or crc_fault(buffer, at, header)
    ):
        return None
    return header


def find_plain_span(
    buffer: memoryview, position: int, size_max: int, check_crcs: bool
) -> tuple[int, int, int]:
    """How many batches from `position` on can be read as one, their bytes, and their records.

    They are valid, uncompressed, neither transactional nor control batches, without gaps between
    offsets, of one leader epoch and one timestamp type. Together they have at most `size_max`
    bytes, though the first alone may have more. Zeros if the first is not of that kind.
    """
    batch_count = size = count = 0
    first: BatchHeader | None = None
    while len(buffer) - position - size >= HEADER_SIZE:
        at = position + size
        header = read_header(buffer, at)
        first = first or header
        if not (
            header_fault(header, len(buffer) - at) is None
            and (not size or size + header.size <= size_max)
            and header.attributes in (0, Attribute.LOG_APPEND_TIME)
            and header.is_dense
            and header.base_offset == first.base_offset + count
            and header.next_offset <= INT64_MAX
            and header.attributes == first.attributes
            and header.partition_leader_epoch == first.partition_leader_epoch
            and not (check_crcs and crc_fault(buffer, at, header))
        ):
            break
        batch_count += 1
        size += header.size
        count += header.record_count
    return batch_count, size, count


def producer_headers(buffer: Buffer, size: int, batches_kept: int) -> list[tuple[int, BatchHeader]]:
    """Headers in a span of `size` bytes, with their positions, that producer state needs.

    It keeps `batches_kept` per producer, so only the last that many plain batches of each are
    returned; control and transactional batches all are.
    """
    headers = []
    position = 0
    while position < size:
        header = read_header(buffer, position)
        if header.producer_id >= 0:
            headers.append((position, header))
        position += header.size
    found = []
    behind = Counter[int]()
    for position, header in reversed(headers):
        is_plain = not (header.is_transactional or header.is_control)
        if not is_plain or behind[header.producer_id] < batches_kept:
            found.append((position, header))
        behind[header.producer_id] += is_plain
    return found[::-1]
