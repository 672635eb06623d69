"""What a log directory has done on the disk meanwhile: files removed, bytes written early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kdist.runtime.files import Files
from kdist.runtime.tasks import Tasks
from kdist.storage.segment import Segment


class Background:
    """Owner: the log directory. `on_failure` hears of whatever goes wrong: nobody waits for it."""

    def __init__(
        self, files: Files, tasks: Tasks, on_failure: Callable[[BaseException], None]
    ) -> None:
        self._files = files
        self._tasks = tasks
        self._on_failure = on_failure

    def discard(self, paths: Sequence[str], delay_ms: int) -> None:
        """Unlink files in `delay_ms`, when reads that are under way have ended."""
        if paths:
            self._later(delay_ms, partial(self._unlink, paths))

    def _unlink(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                self._files.remove(path)
            except FileNotFoundError:
                pass  # a partition that was deleted in the meantime took it along

    def remove_tree(self, path: str, delay_ms: int = 0) -> None:
        """Remove a directory with all that is in it, in `delay_ms`."""
        self._later(delay_ms, partial(self._files.remove_tree, path))

    def start_writeback(self, segment: Segment) -> None:
        """Let the kernel begin to write what the segment has got since the last time."""
        start, segment.written_back = segment.written_back, segment.size
        segment.pin()

        def end(error: BaseException | None) -> None:
            segment.unpin()
            self._end(error)

        work = partial(segment.file.start_writeback, start, segment.size - start)
        self._tasks.run_blocking(work, end)

    def _later(self, delay_ms: int, work: Callable[[], None]) -> None:
        run = partial(self._tasks.run_blocking, work, self._end)
        if delay_ms:
            self._tasks.call_later(delay_ms, run)
        else:
            run()

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self._on_failure(error)
