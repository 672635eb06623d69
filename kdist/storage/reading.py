"""Reading a log: the bytes a fetch answers with.

A fetch gets a `Slice`, a range of a segment's file for `sendfile`: no record passes through this
process. Records that are not in the page cache are detected, and first read by a thread.

Reading from the disk would block the event loop, 12 ms a time on a busy SATA disk. So the page
cache is probed first with `RWF_NOWAIT`, 2 µs a page, and at few points: the kernel reads ahead, and
evicts in the order of reading, so between two cached pages few are missing. What was cached less
than a second ago is not probed again, so neither a sequential reader nor one behind another pays
twice. A page missing between two points, or evicted between probe and read, still blocks the loop
once; so may an offset index, of which few pages are ever needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from kdist.errors import ApiError, CorruptFile, Error
from kdist.runtime.tasks import Tasks
from kdist.storage.log import Log
from kdist.storage.scan import DamagedSegment
from kdist.storage.segment import Segment

logger = logging.getLogger(__name__)
T = TypeVar("T")

_BLOCK_BITS = 19  # one probe per block of 512 KiB: the kernel reads 128 KiB ahead by default
_REMEMBERED_NS = 1_000_000_000
_REMEMBERED_BLOCKS_MAX = 4096  # 2 GiB: more than anyone is sent in a second
_PIECE_BYTES = 1 << 20


class Slice:
    """`size` bytes of batches at `position`; a byte limit may have cut the last one.

    It pins its segment: its receiver must call `release` exactly once, when it was sent.
    """

    __slots__ = ("file", "generation", "is_cold", "position", "segment", "size")

    def __init__(self, segment: Segment, position: int, size: int, *, is_cold: bool) -> None:
        self.file = segment.file  # opened now, since it may be renamed later
        segment.pin()
        self.segment = segment
        self.generation = segment.generation
        self.position = position
        self.size = size
        self.is_cold = is_cold

    def __len__(self) -> int:
        return self.size

    def read(self, bytes_max: int | None = None) -> bytes:
        """The bytes, all or the first `bytes_max`, for callers that cannot use sendfile."""
        size = self.size if bytes_max is None else min(bytes_max, self.size)
        return self.file.read(self.position, size)

    def release(self) -> None:
        """Unpin the segment; drop cold bytes, which nobody else will want, from the page cache."""
        if self.is_cold:
            # From the file's start: read-ahead and earlier readers may have left pages there too.
            self.file.drop_cached(0, self.position + self.size)
        self.segment.unpin()


def read(
    log: Log, offset: int, bytes_max: int, *, end_offset: int | None = None, whole: bool = True
) -> Slice | None:
    """Batches of one segment from the one that holds `offset` on, up to `bytes_max`; None if none.

    `end_offset`: the limit for readers, as the high watermark. `whole`: return the first batch
    whole even if it is larger than `bytes_max`. Raises OFFSET_OUT_OF_RANGE for an offset outside
    the log.
    """
    limit = log.end_offset if end_offset is None else min(end_offset, log.end_offset)
    if not log.start_offset <= offset <= log.end_offset:
        raise ApiError(
            Error.OFFSET_OUT_OF_RANGE,
            f"{log.partition} holds {log.start_offset} to {log.end_offset}, not {offset}",
        )
    if offset >= limit or (bytes_max <= 0 and not whole):
        return None
    found = _known_place(log, offset) or _locate(log, offset)
    return None if found is None else _cut(log, found, bytes_max, limit, whole=whole)


Place = tuple[Segment, int, int]
"""Where a batch is: its segment, its position there, and its size or, if unknown, 0."""


def _known_place(log: Log, offset: int) -> Place | None:
    """The place of the batch with `offset`, or the next one, if known without reading a file."""
    recent = log.recent.get(offset)
    if recent is not None:
        return log.segments[-1], recent, 0
    segment = log.segments[log.segment_index(offset)]
    place = segment.places.get(offset)
    return None if place is None else (segment, *place)


def _cut(log: Log, place: Place, bytes_max: int, end_offset: int, *, whole: bool) -> Slice | None:
    """As `read`, for the batches from `place` on, the first of which begins before `end_offset`."""
    segment, position, first_size = place
    end = segment.size if end_offset == log.end_offset else _end_position(log, segment, end_offset)
    size = min(bytes_max, end - position)
    if whole and size < end - position:
        first_size = first_size or next(segment.walk_headers(position))[1].size
        size = max(size, min(first_size, end - position))
    if size <= 0:
        return None
    is_cold = segment is not log.segments[-1] and _is_cold(log, segment, position)
    return Slice(segment, position, size, is_cold=is_cold)


def is_followed(log: Log, part: Slice, end_offset: int) -> bool:
    """Whether more batches below `end_offset` lie behind what was read: a slice is of one segment,
    and a byte limit may have ended it.
    """
    number = log.segment_index(part.segment.base_offset) + 1
    if number < len(log.segments) and log.segments[number].base_offset < end_offset:
        return True
    is_whole = end_offset >= log.end_offset
    end = part.segment.size if is_whole else _end_position(log, part.segment, end_offset)
    return part.position + part.size < end


def trim(part: Slice) -> None:
    """Leave out the batch that a byte limit has cut off, unless it is the only one.

    By the headers: where batches are small, a walk over 1 MiB takes a fifth of a millisecond.
    """
    start, end = part.position, part.position + part.size
    whole = 0
    with suppress(DamagedSegment):  # the one that is cut off
        for position, span, _ in part.segment.walk_spans(start, end=end):
            whole = position + span.size - start
    part.size = whole or part.size


def with_sound_index(log: Log, segment: Segment, look_up: Callable[[Segment], T]) -> T:
    """The result of `look_up` in the segment; if its index is corrupt, rebuild it and retry."""
    try:
        return look_up(segment)
    except CorruptFile as fault:
        logger.warning("%s: the indexes are rebuilt", fault)
        log.rebuild_indexes(segment)
        return look_up(segment)


def _locate(log: Log, offset: int) -> Place | None:
    """As `_known_place`, by the indexes; None if there is no such batch."""
    number = log.segment_index(offset)
    segment = log.segments[number]
    for later in log.segments[number:]:
        if later.base_offset >= log.truncating_from:
            return None
        # Compaction may have left nothing at or after `offset` in the segment that covers it.
        found = with_sound_index(log, later, lambda segment: segment.find(offset))
        if found is not None:
            position, header = found
            if later is segment:
                segment.note_place(offset, position, header.size)
            return later, position, header.size
    return None


def _end_position(log: Log, segment: Segment, limit: int) -> int:
    """Where in the segment the batches below offset `limit` end."""
    following = log.recent.get(limit)
    if following is not None:
        return following if segment is log.active else segment.size
    found = with_sound_index(log, segment, lambda segment: segment.find(limit))
    return segment.size if found is None else found[0]


def _is_cold(log: Log, segment: Segment, position: int) -> bool:
    behind, number = segment.size - position, len(log.segments)
    # Counted from the end, and no further than needed: a log may have thousands of segments.
    while behind <= log.context.settings.cold_read_bytes:
        number -= 1
        if log.segments[number] is segment:
            return False
        behind += log.segments[number].size
    return True


class PageCache:
    """What recent probes found to be in the page cache. Owner: `FetchHandler`."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        # By segment and block number: the range of positions found cached. Cleared as a whole once
        # the oldest entry may be a second old.
        self._known: dict[tuple[Segment, int], tuple[int, int]] = {}
        self._forget_ns = 0

    def read(
        self, log: Log, offset: int, bytes_max: int, end_offset: int, *, whole: bool = True
    ) -> tuple[Slice | None, bool]:
        """As `read`, and whether the result is cold.

        A cold slice is what a thread must read before this read is tried again. The caller has to
        release it like any other.
        """
        place = _known_place(log, offset)
        if place is None or offset < log.start_offset:
            cold = self._cold_search(log, offset, bytes_max)
            if cold is not None:
                return cold, True
            return read(log, offset, bytes_max, end_offset=end_offset, whole=whole), False
        part = _cut(log, place, bytes_max, end_offset, whole=whole)
        if part is None or offset in log.recent:
            return part, False
        return part, not self._has(part.segment, part.position, part.position + part.size)

    def _cold_search(self, log: Log, offset: int, bytes_max: int) -> Slice | None:
        """The range that an index look-up and the read may touch, unless all of it is cached."""
        if not log.start_offset <= offset < log.end_offset:
            return None
        segment = log.segments[log.segment_index(offset)]
        if segment.base_offset >= log.truncating_from:
            return None  # the read finds nothing there for now
        try:
            entry = segment.offset_index.floor(offset - segment.base_offset)
        except CorruptFile:
            return None  # the read will meet this error too, and rebuild the index
        start = 0 if entry is None else entry.value
        size = min(bytes_max + log.settings.index_interval_bytes, segment.size - start)
        if start < 0 or size <= 0 or self._has(segment, start, start + size):
            return None  # cached, or the index is corrupt, which the read will detect
        return Slice(segment, start, size, is_cold=False)

    def _has(self, segment: Segment, start: int, end: int) -> bool:
        now_ns, known = self._now_ns(), self._known
        if now_ns >= self._forget_ns or len(known) >= _REMEMBERED_BLOCKS_MAX:
            known.clear()
            self._forget_ns = now_ns + _REMEMBERED_NS
        is_cached, number, position = segment.file.read_cached, start >> _BLOCK_BITS, start
        first_start, first_end = known.get((segment, number), (end, 0))
        if start < first_start:
            if is_cached(start, 1) is None:
                return False
            known[segment, number] = start, max(start, first_end)
        while position < end:
            part_end = min(end, number + 1 << _BLOCK_BITS)
            known_start, known_end = known.get((segment, number), (position, 0))
            if known_end < part_end:
                if is_cached(part_end - 1, 1) is None:
                    return False
                known[segment, number] = known_start, part_end
            position, number = part_end, number + 1
        return True


def warm(
    tasks: Tasks, parts: Sequence[Slice], done: Callable[[BaseException | None], None]
) -> None:
    """Have a thread read the slices into the page cache; then call `done`, with any error."""

    def read_all() -> None:
        for part in parts:
            end = part.position + part.size
            for position in range(part.position, end, _PIECE_BYTES):
                part.file.read(position, min(_PIECE_BYTES, end - position))

    tasks.run_blocking(read_all, done)
