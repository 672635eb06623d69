"""Many batches of a log at once, in plain Python: the judge of `_compiled_stretch.py`.

Both modules have the same functions, with the same outcome for the same input. Who goes through a
log, as a start after a crash does, wants to know of most batches that they are sound, and nothing
else of one alone: so he is told of as many as he need not tell apart. A header's layout is in
`batch.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from kdist.records.batch import HEADER_SIZE, BatchHeader, crc_fault, header_fault, read_header
from kdist.wire.varint import Buffer


class Stretch(NamedTuple):
    """Sound batches, one behind the other, with no gap between offsets, of one leader epoch."""

    size: int
    last_size: int  # of the last batch
    base_offset: int
    last_offset: int
    leader_epoch: int
    record_count: int
    newest_ms: int  # the largest timestamp
    newest_offset: int  # the last offset of the first batch that has it
    has_producers: bool
    """Whether any batch has a producer id."""


def find_stretch(
    buffer: memoryview,
    position: int,
    end: int,
    offset_before: int,
    offset_max: int,
    trusted_offset: int,
    room_bytes: int,
) -> Stretch | None:
    """The longest stretch from `position` on; None if the first batch is not sound, or not here.

    `buffer` has the headers, and the file that it is from ends at `end`, counted as `position` is.
    All offsets lie behind `offset_before` and go up to `offset_max`. A batch that ends below
    `trusted_offset` need not be here but for its header; of others the CRC is checked. No batch
    but the last one has more than `room_bytes` of the stretch before it.
    """
    size = last_size = record_count = 0
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
        record_count += header.record_count
        has_producers |= header.producer_id >= 0
    if first is None or newest is None:
        return None
    return Stretch(
        size,
        last_size,
        first.base_offset,
        offset_before,
        first.partition_leader_epoch,
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


def producer_headers(buffer: Buffer, size: int, batches_kept: int) -> list[tuple[int, BatchHeader]]:
    """Headers in a stretch of `size` bytes, and their places, for who remembers producers.

    He keeps `batches_kept` of each, so of the plain ones these are the last. Control batches, and
    those of a transaction, are there all.
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
