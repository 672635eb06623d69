"""Walking through a segment's batches, up to the first that is damaged.

Three walks over the same bytes: `walk_headers` reads the 61 bytes of each batch and skips its
records, `walk_batches` reads everything and checks the CRC, `walk_spans` does either for many
batches at a time. All end at `end`, or with `DamagedSegment` at the first batch that is wrong: what
to do about that (cut, report, refuse) is for the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kdist.config.kinds import INT64_MAX
from kdist.errors import CorruptRecords
from kdist.records.batch import HEADER_SIZE, BatchHeader, crc_fault, header_fault, read_header
from kdist.records.codec import BatchSpan, find_span
from kdist.runtime.files import File

RELATIVE_OFFSET_MAX = 2**31 - 1  # indexes hold offsets relative to the segment's base in an int32
# A look-up starts at most `index.interval.bytes` (4 KiB) before its target, so a read of one page
# mostly contains it.
LOOKUP_BYTES = 4096
# Larger reads gain nothing from the page cache, and do not fit the CPU cache.
_SCAN_BYTES = 256 * 1024
_STEP_BYTES = 4 << 20  # some 5 ms from the page cache, 20 ms from a disk
_LOOK_BYTES = 4 << 10  # the fixed cost of looking at batches, expressed in bytes


class DamagedSegment(CorruptRecords):
    """A batch in a segment's file that is not what was appended."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at position {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


Piece = tuple[int, BatchSpan, memoryview]
"""Position in the file, the span of batches there, and its bytes, at least all headers."""


class ScannedBatch(NamedTuple):
    """A batch whose header and CRC are good."""

    position: int
    header: BatchHeader
    data: memoryview


def walk_headers(
    file: File, start: int, end: int, *, base_offset: int, read_bytes: int = LOOKUP_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """The position and header of each batch from `start` (where one must begin) to `end`.

    `base_offset` is the segment's. Offsets must grow from there, and may leave gaps.
    """
    position, chunk, chunk_start = start, b"", start
    offset_min = base_offset
    while position < end:
        place = position - chunk_start
        if place + HEADER_SIZE > len(chunk):
            chunk = file.read(position, min(read_bytes, end - position))
            chunk_start, place = position, 0
        header = _read_header(file, chunk, place, position)
        check_header(file, header, position, end, base_offset, offset_min)
        yield position, header
        offset_min = header.next_offset
        position += header.size


def walk_batches(file: File, start: int, end: int, *, base_offset: int) -> Iterator[ScannedBatch]:
    """As `walk_headers`, with each batch's bytes, and its CRC checked."""
    position, chunk, chunk_start = start, memoryview(b""), start
    offset_min = base_offset
    while position < end:
        place = position - chunk_start
        if place + HEADER_SIZE > len(chunk):
            chunk, chunk_start, place = _read_chunk(file, position, _SCAN_BYTES, end), position, 0
        header = _read_header(file, chunk, place, position)
        check_header(file, header, position, end, base_offset, offset_min)
        if place + header.size > len(chunk):
            size = max(_SCAN_BYTES, header.size)
            chunk, chunk_start, place = _read_chunk(file, position, size, end), position, 0
        if len(chunk) < place + header.size:
            raise DamagedSegment(file.path, position, "the file ends inside a batch")
        if fault := crc_fault(chunk, place, header):
            raise DamagedSegment(file.path, position, fault)
        yield ScannedBatch(position, header, chunk[place : place + header.size])
        offset_min = header.next_offset
        position += header.size


def walk_spans(
    file: File,
    start: int,
    end: int,
    *,
    base_offset: int,
    trusted_offset: int = INT64_MAX,
    room: Callable[[], int] = lambda: INT64_MAX,
) -> Iterator[Piece]:
    """As `walk_headers`, many batches at a time.

    The CRC is checked of batches that do not end below `trusted_offset`. `room` is called before
    each span and returns how many bytes it may have before its last batch.
    """
    position, offset_before = start, base_offset - 1
    offset_max = min(base_offset + RELATIVE_OFFSET_MAX, INT64_MAX)
    chunk, chunk_start, read_bytes = memoryview(b""), start, LOOKUP_BYTES
    while position < end:
        place = position - chunk_start
        span = find_span(
            chunk, place, end - chunk_start, offset_before, offset_max, trusted_offset, room()
        )
        if span is not None:
            yield position, span, chunk[place:]
            position += span.size
            offset_before = span.last_offset
            is_read_whole = span.last_size <= LOOKUP_BYTES or offset_before >= trusted_offset
            read_bytes = _SCAN_BYTES if is_read_whole else LOOKUP_BYTES
            continue
        if chunk and not place:  # the chunk was read for this batch, after a check of its header
            fault = crc_fault(chunk, 0, read_header(chunk))
            assert fault is not None, "everything but the CRC was checked"
            raise DamagedSegment(file.path, position, fault)
        chunk, chunk_start = _read_chunk(file, position, read_bytes, end), position
        header = _read_header(file, chunk, 0, position)
        check_header(file, header, position, end, base_offset, offset_before + 1)
        if header.last_offset >= trusted_offset and header.size > len(chunk):
            chunk = _read_chunk(file, position, header.size, end)
            if len(chunk) < header.size:
                raise DamagedSegment(file.path, position, "the file ends inside a batch")


def _read_chunk(file: File, position: int, size: int, end: int) -> memoryview:
    return memoryview(file.read(position, min(size, end - position)))


def _read_header(file: File, chunk: bytes | memoryview, place: int, position: int) -> BatchHeader:
    if len(chunk) - place < HEADER_SIZE:
        raise DamagedSegment(file.path, position, "the file ends inside a batch header")
    return read_header(chunk, place)


def check_header(
    file: File, header: BatchHeader, position: int, end: int, base_offset: int, offset_min: int
) -> None:
    """Raise `DamagedSegment` if the header is invalid, or cannot be in this place."""
    fault = header_fault(header, end - position)
    if fault is None and header.base_offset < offset_min:
        fault = f"base offset {header.base_offset} where at least {offset_min} must follow"
    if fault is None and header.last_offset - base_offset > RELATIVE_OFFSET_MAX:
        fault = f"offset {header.last_offset} is beyond what a segment from {base_offset} can hold"
    if fault is not None:
        raise DamagedSegment(file.path, position, fault)


class Pace:
    """Tells a walk over a log's batches when to pause, if it goes in steps."""

    def __init__(self) -> None:
        self._left_bytes = _STEP_BYTES

    def is_over(self, size_bytes: int) -> bool:
        """Count a look at this many bytes; return whether the step is complete."""
        self._left_bytes -= size_bytes + _LOOK_BYTES
        if self._left_bytes > 0:
            return False
        self._left_bytes = _STEP_BYTES
        return True
