"""From an offset to the batch that holds it, reading little of the batches before it.

A walk that checks each header as `scan.walk_headers` does takes 5 us a batch, and there may be
forty between two index entries. The walk here takes half a microsecond a batch up to the wanted
one, and checks only that one in full. If anything looks wrong, the result is None, and the caller
takes the careful walk, which raises what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from kdist.errors import CorruptRecords
from kdist.records.batch import HEADER_SIZE, LENGTH_PREFIX_SIZE, MAGIC, BatchHeader, read_header
from kdist.runtime.files import File
from kdist.storage.faults import CorruptFile
from kdist.storage.index import IndexEntry, OffsetIndex
from kdist.storage.scan import LOOKUP_BYTES, DamagedSegment, check_header, walk_headers

# Of a header: base offset, length, (leader epoch,) magic, (CRC, attributes,) last offset delta.
_EXTENT = struct.Struct(">qi4xb6xi")
_LENGTH_MIN = HEADER_SIZE - LENGTH_PREFIX_SIZE
# If two entries are farther apart, the batch in between is large enough for an entry of its own, so
# the next entry most likely points to the very next batch.
_NEIGHBOURS_BYTES = 2 * LOOKUP_BYTES

Found = tuple[int, BatchHeader]


def find_batch(
    file: File, end: int, base_offset: int, index: OffsetIndex, offset: int
) -> Found | None:
    """Position and header of the batch of a segment that holds `offset`.

    None if no batch holds it (the next one would be found by walking), or if anything is wrong.
    `end` is the segment's size.
    """
    before, after = index.around(offset - base_offset)
    if before is None:
        return _walk(file, 0, end, base_offset, offset, offset)
    start, last_offset = before.value, base_offset + before.key
    if last_offset < offset and after is not None and start + _NEIGHBOURS_BYTES < after.value < end:
        header = file.read(after.value, HEADER_SIZE)
        found = _checked(file, header, 0, after.value, end, base_offset, offset)
        if found is not None:
            return found
    return _walk(file, start, end, base_offset, offset, last_offset)


def _walk(
    file: File, start: int, end: int, base_offset: int, offset: int, first_max: int
) -> Found | None:
    """As `find_batch`, from `start`, where a batch begins with a base offset up to `first_max`."""
    if not 0 <= start < end:
        return None
    position, chunk, place = start, file.read(start, min(LOOKUP_BYTES, end - start)), 0
    while place + HEADER_SIZE <= len(chunk):
        first, length, magic, last_delta = _EXTENT.unpack_from(chunk, place)
        if magic != MAGIC or length < _LENGTH_MIN or last_delta < 0 or first > first_max:
            return None
        if first + last_delta >= offset:
            return _checked(file, chunk, place, position, end, base_offset, offset)
        first_max = offset
        position += LENGTH_PREFIX_SIZE + length
        place += LENGTH_PREFIX_SIZE + length
        if place + HEADER_SIZE > len(chunk) and position < end:
            chunk, place = file.read(position, min(LOOKUP_BYTES, end - position)), 0
    return None


def _checked(
    file: File, data: bytes, place: int, position: int, end: int, base_offset: int, offset: int
) -> Found | None:
    """The batch at `position`, whose header is in `data`, if that is sound and holds `offset`."""
    try:
        header = read_header(data, place)
        check_header(file, header, position, end, base_offset, base_offset)
    except CorruptRecords:
        return None
    return (position, header) if header.base_offset <= offset <= header.last_offset else None


def walk_from(
    file: File, end: int, base_offset: int, entry: IndexEntry | None, index_path: str
) -> Iterator[Found]:
    """The careful walk, from where `entry` points (None: from the start of the segment).

    `CorruptFile` if no batch begins there, or another than the entry's.
    """
    start = 0 if entry is None else entry.value
    walk = walk_headers(file, start, end, base_offset=base_offset)
    if entry is not None:
        first = _first_if_indexed(walk, entry, end, base_offset)
        if first is None:
            reason = f"its entry for offset {base_offset + entry.key} points nowhere"
            raise CorruptFile(index_path, None, reason)
        yield first
    yield from walk


def _first_if_indexed(
    walk: Iterator[Found], entry: IndexEntry, end: int, base_offset: int
) -> Found | None:
    if not 0 <= entry.value < end:
        return None
    try:
        position, header = next(walk)
    except DamagedSegment:
        return None
    return (position, header) if header.base_offset <= base_offset + entry.key else None
