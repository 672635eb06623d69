"""Record bytes that are not in the page cache: seen beforehand, and read by a thread.

Reading what the disk has to be asked for stops the loop, and everyone, for as long as the disk
takes: 12 ms a time on a busy SATA disk. Whether a page is there is asked with `RWF_NOWAIT`, at few
points, two microseconds each: the kernel reads ahead, and drops first what it read first, so that
between two pages that are there few are not. What is missing there, or dropped between question and
answer, is bad luck and costs one such stop; so may a look at an offset index, of which few pages
are ever needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kdist.runtime.tasks import Tasks
from kdist.storage.log import Log
from kdist.storage.reading import Slice

_PROBE_EVERY_BYTES = 512 << 10
_PROBE_BYTES_MIN = 128 << 10  # as far as the kernel reads ahead by default
_PIECE_BYTES = 1 << 20


def find_cold(log: Log, offset: int, bytes_max: int) -> Slice | None:
    """What a read of `bytes_max` from `offset` needs, if not all of it seems to be cached.

    It begins where the search for `offset` does. To be released, as every slice.
    """
    if offset in log.recent or not log.start_offset <= offset < log.end_offset:
        return None
    segment = log.segments[log.segment_index(offset)]
    entry = segment.offset_index.floor(offset - segment.base_offset)
    start = 0 if entry is None else entry.value
    size = min(bytes_max + log.settings.index_interval_bytes, segment.size - start)
    if start < 0 or size <= 0:  # an index that misleads: reading will find that out
        return None
    file, end = segment.file, start + size
    last = end - 1
    for position in (*range(start, last - _PROBE_BYTES_MIN, _PROBE_EVERY_BYTES), last):
        if file.read_cached(position, 1) is None:
            return Slice(segment, start, size, is_cold=False)
    return None


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
