"""Cold reads: records that are not in the page cache are detected, and read by a thread.

Reading from the disk would block the event loop, 12 ms a time on a busy SATA disk. So the page
cache is probed first with `RWF_NOWAIT`, 2 µs a page, and at few points: the kernel reads ahead, and
evicts in the order of reading, so between two cached pages few are missing. What was cached less
than a second ago is not probed again, so neither a sequential reader nor one behind another pays
twice. A page missing between two points, or evicted between probe and read, still blocks the loop
once; so may an offset index, of which few pages are ever needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kdist.runtime.tasks import Tasks
from kdist.storage.faults import CorruptFile
from kdist.storage.log import Log
from kdist.storage.reading import Slice, cut, known_place, read
from kdist.storage.segment import Segment

_BLOCK_BITS = 19  # one probe per block of 512 KiB: the kernel reads 128 KiB ahead by default
_REMEMBERED_NS = 1_000_000_000
_REMEMBERED_BLOCKS_MAX = 4096  # 2 GiB: more than anyone is sent in a second
_PIECE_BYTES = 1 << 20


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
        """As `storage.reading.read`, and whether the result is cold.

        A cold slice is what a thread must read before this read is tried again. The caller has to
        release it like any other.
        """
        place = known_place(log, offset)
        if place is None or offset < log.start_offset:
            cold = self._cold_search(log, offset, bytes_max)
            if cold is not None:
                return cold, True
            return read(log, offset, bytes_max, end_offset=end_offset, whole=whole), False
        part = cut(log, place, bytes_max, end_offset, whole=whole)
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
