"""Saving checkpoints in a thread; each request is served by a save that began after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kdist.errors import DiskFull
from kdist.storage.context import DirectoryContext, Done


class OffsetSaver:
    """Owner: the log directory. One save runs at a time, so an older never overwrites a newer."""

    def __init__(
        self,
        context: DirectoryContext,
        encode: Callable[[bool], Mapping[str, bytes]],
        on_saved: Callable[[], None],
    ) -> None:
        """`encode(is_whole)` returns the path and present content of each checkpoint, or of that
        of the high watermarks alone.

        `on_saved` is called when the last content `encode`d as a whole is on the disk.
        """
        self._context = context
        self._encode = encode
        self._on_saved = on_saved
        self._saved: Mapping[str, bytes] = {}  # by the last save, if it succeeded
        self._waiting: list[Done] = []
        self._is_running = False
        self._is_wanted = False
        self._is_whole = False  # whether the next save is of all checkpoints

    def request(self, done: Done | None = None) -> None:
        """Save the present state durably; then call `done`, with `DiskFull` if it did not fit."""
        if done is not None:
            self._waiting.append(done)
        self._is_whole = True
        self.request_high_watermarks()

    def request_high_watermarks(self) -> None:
        """Save the present high watermarks, if they are not those saved last."""
        self._is_wanted = True
        if not self._is_running:
            self._start()

    def _start(self) -> None:
        self._is_running, self._is_wanted = True, False
        waiting, self._waiting = self._waiting, []
        is_whole, self._is_whole = self._is_whole, False
        contents = self._encode(is_whole)
        if not is_whole and contents.items() <= self._saved.items():  # nothing to do
            self._is_running = False
            return
        self._saved = {}

        def save() -> None:
            for path, content in contents.items():
                self._context.files.replace(path, content)

        def end(error: BaseException | None) -> None:
            if error is None:
                self._saved = contents
            self._end(error, waiting, is_whole)

        self._context.tasks.run_blocking(save, end)

    def _end(self, error: BaseException | None, waiting: list[Done], is_whole: bool) -> None:
        self._is_running = False
        if error is not None and not isinstance(error, DiskFull):
            self._context.on_failure(error)
            return
        if error is None and is_whole:
            self._on_saved()
        for done in waiting:
            done(error)
        if self._is_wanted and not self._is_running:
            self._start()
