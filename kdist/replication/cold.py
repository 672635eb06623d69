"""Record bytes that are not in the page cache: seen beforehand, and read by a thread.

Reading what the disk has to be asked for stops the loop, and everyone, for as long as the disk
takes: 12 ms a time on a busy SATA disk. Whether a page is there is asked with `RWF_NOWAIT`, at few
points, two microseconds each: the kernel reads ahead, and drops first what it read first, so that
between two pages that are there few are not. What was there less than a second ago is not asked
for again: nobody who reads a log on, or after another, pays twice. What is missing between such
points, or dropped between question and answer, is bad luck and costs one such stop; so may a look
at an offset index, of which few pages are ever needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kdist.runtime.tasks import Tasks
from kdist.storage.faults import CorruptFile
from kdist.storage.log import Log
from kdist.storage.reading import Slice, cut, known_place, read
from kdist.storage.segment import Segment

_BLOCK_BITS = 19  # a point in each block of 512 KiB: the kernel reads 128 KiB ahead by default
_REMEMBERED_NS = 1_000_000_000
_REMEMBERED_BLOCKS_MAX = 4096  # 2 GiB: more than anyone is sent in a second
_PIECE_BYTES = 1 << 20


class PageCache:
    """What of the logs was in the page cache when it was last asked for. Owner: `FetchHandler`."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        # By segment and number of block: from and up to which position it was there. Forgotten all
        # at once, when the oldest of it may be too old.
        self._known: dict[tuple[Segment, int], tuple[int, int]] = {}
        self._forget_ns = 0

    def read(
        self, log: Log, offset: int, bytes_max: int, end_offset: int, *, whole: bool = True
    ) -> tuple[Slice | None, bool]:
        """As the log's `read`, and whether it is to be read by a thread first.

        The slice is what that has to read then, and to be released as any other.
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
        """What a read needs that has to look for its place, if not all of it seems to be cached."""
        if not log.start_offset <= offset < log.end_offset:
            return None
        segment = log.segments[log.segment_index(offset)]
        try:
            entry = segment.offset_index.floor(offset - segment.base_offset)
        except CorruptFile:
            return None  # reading will find that out, and make it anew
        start = 0 if entry is None else entry.value
        size = min(bytes_max + log.settings.index_interval_bytes, segment.size - start)
        if start < 0 or size <= 0 or self._has(segment, start, start + size):
            return None  # or an index that misleads: reading will find that out
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
    """Have a thread read them into the page cache; then call `done`, with what failed."""

    def read_all() -> None:
        for part in parts:
            end = part.position + part.size
            for position in range(part.position, end, _PIECE_BYTES):
                part.file.read(position, min(_PIECE_BYTES, end - position))

    tasks.run_blocking(read_all, done)
