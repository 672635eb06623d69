"""Background work of a log directory: removing files, starting writeback early."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from kdist.errors import DiskFull
from kdist.storage.context import DirectoryContext
from kdist.storage.segment import Segment

logger = logging.getLogger(__name__)


class _Removal(NamedTuple):
    path: str  # the first one, for the log line
    work: Callable[[], None]


class Background:
    """Owner: the log directory. Nobody awaits this work, so `on_failure` is told of its errors."""

    def __init__(self, context: DirectoryContext) -> None:
        self._files = context.files
        self._tasks = context.tasks
        self._on_failure = context.on_failure
        self._removals: deque[_Removal] = deque()  # the first is under way
        self._is_stopped = False

    def discard(self, paths: Sequence[str], delay_ms: int) -> None:
        """Unlink files after `delay_ms`, by when present reads have ended."""
        if paths:
            self._remove_later(delay_ms, _Removal(paths[0], partial(self._unlink, paths)))

    def _unlink(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                self._files.remove(path)
            except FileNotFoundError:
                pass  # removed with its partition, which was deleted meanwhile

    def remove_tree(self, path: str, delay_ms: int = 0) -> None:
        """Remove a directory and its contents after `delay_ms`."""
        self._remove_later(delay_ms, _Removal(path, partial(self._remove_tree, path)))

    def _remove_tree(self, path: str) -> None:
        try:
            self._files.remove_tree(path)
        except FileNotFoundError:
            pass  # a person removed it, perhaps in part; the next start removes the rest

    def start_writeback(self, segment: Segment) -> None:
        """Have the kernel start writing back what was appended since the last call."""
        start, segment.written_back = segment.written_back, segment.size
        file = segment.file
        segment.pin()

        def end(error: BaseException | None) -> None:
            segment.unpin()
            self._end(error)

        work = partial(file.start_writeback, start, segment.size - start)
        self._tasks.run_blocking(work, end)

    def stop(self) -> None:
        """Start no further removal; the next start removes the rest."""
        self._is_stopped = True

    def _remove_later(self, delay_ms: int, removal: _Removal) -> None:
        if delay_ms:
            self._tasks.call_later(delay_ms, partial(self._remove, removal))
        else:
            self._remove(removal)

    def _remove(self, removal: _Removal) -> None:
        """Queue a removal. One runs at a time: there may be thousands, and flushes need threads."""
        self._removals.append(removal)
        if len(self._removals) == 1:
            self._remove_next()

    def _remove_next(self) -> None:
        if not self._is_stopped:
            self._tasks.run_blocking(self._removals[0].work, self._removed)

    def _removed(self, error: BaseException | None) -> None:
        path = self._removals.popleft().path
        if isinstance(error, DiskFull | OSError):  # full disk, or a person changed something there
            logger.warning("%s is not removed, the next start tries again: %s", path, error)
        else:
            self._end(error)
        if self._removals:
            self._remove_next()

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self._on_failure(error)
