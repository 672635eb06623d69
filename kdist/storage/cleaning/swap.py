"""Taking a cleaned segment into its log, in place of those that it was made from.

    the log is busy from here on: no flush, no truncation, no retention
    .cleaned -> .swap, durably       a thread     from here on a start completes it
    the log reads the new segment    the loop     readers of the old ones read on: files stay open
    the old are retired, durably     a thread
    .swap -> its name, durably
    the log is free again            the loop

Appends and reads go on all the time. Where the last two steps find no room, the swap waits, and the
log is free for flushes and its deletion. What would change its segments has no better chance of
finding room, since it begins with the same renames: a truncation is refused, retention looks later.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from itertools import product

from kdist.errors import ApiError, DiskFull, Error
from kdist.storage.context import Done
from kdist.storage.directory import LogDirectory
from kdist.storage.log import Log
from kdist.storage.names import FileState, Suffix, segment_name
from kdist.storage.segment import Segment
from kdist.storage.swapping import IN_ORDER, begin_swap, put_in_place

logger = logging.getLogger(__name__)

_RETRY_MS = 1_000  # on a full disk


class Swap:
    """One exchange. Owner: the cleaner. The log must not be busy, and have all of `old`."""

    def __init__(
        self,
        directory: LogDirectory,
        log: Log,
        old: Sequence[Segment],
        mapped_end: int,
        done: Done,
    ) -> None:
        self._context = directory.context
        self._directory = directory
        self._files = directory.files
        self._log = log
        self._old = old
        self._mapped_end = mapped_end
        self._done = done
        self._base_offset = old[0].base_offset
        self._retired: list[str] = []
        self._new: Segment | None = None
        self._is_waiting = False

    def begin(self) -> None:
        """Start; `done` gets `DiskFull` if there is no room, and then nothing has changed."""
        log = self._log
        log.begin_swap(self._mapped_end)
        try:
            self._new = new = Segment.load(
                self._files, log.directory, self._base_offset, FileState.CLEANED
            )
            new.modified_ms = max(each.modified_ms for each in self._old)
            new.pin()
            new.sync_targets(is_sealed=True)  # opens them: later their names change
        except DiskFull as error:
            self._give_up(error)
            return
        rename = partial(begin_swap, self._files, log.directory, self._base_offset)
        self._context.tasks.run_blocking(rename, self._renamed)

    def _renamed(self, error: BaseException | None) -> None:
        if isinstance(error, DiskFull):
            self._give_up(error)
        elif error is not None:
            self._context.on_failure(error)
        else:
            assert self._new is not None
            self._new.take_names(FileState.SWAP)
            self._log.replace_segments(self._old, self._new)
            self._put_in_place()

    def _give_up(self, error: DiskFull) -> None:
        log, files = self._log, self._files
        if self._new is not None:
            self._new.close()
            self._new.unpin()

        def clear() -> None:
            # By name: no descriptor may be left to list the directory. The `.log.swap` goes first.
            for state, suffix in product((FileState.SWAP, FileState.CLEANED), reversed(IN_ORDER)):
                path = f"{log.directory}/{segment_name(self._base_offset, suffix, state)}"
                if files.exists(path):
                    files.remove(path)

        def cleared(failure: BaseException | None) -> None:
            if failure is not None and not isinstance(failure, ApiError):
                self._context.on_failure(failure)
                return
            self._end(error)

        self._context.tasks.run_blocking(clear, cleared)

    def _put_in_place(self) -> None:
        files, log = self._files, self._log
        snapshots = [
            f"{log.directory}/{segment_name(each.base_offset, Suffix.SNAPSHOT)}"
            for each in self._old[1:]
        ]

        def work() -> None:
            put_in_place(files, log.directory, self._old, self._base_offset, self._retired)
            for path in filter(files.exists, snapshots):
                files.remove(path)

        self._context.tasks.run_blocking(work, self._placed)

    def _placed(self, error: BaseException | None) -> None:
        log, new = self._log, self._new
        if isinstance(error, DiskFull):
            if not self._is_waiting:
                logger.warning(
                    "%r: a cleaned segment waits for room to get its name: %s", log, error
                )
            self._is_waiting = True
            log.pause_swap()
            self._directory.flusher.request(log)  # some may have waited
            self._context.tasks.call_later(_RETRY_MS, self._retry)
            return
        if error is not None:
            self._context.on_failure(error)
            return
        assert new is not None
        new.take_names(FileState.LIVE)
        new.unpin()
        self._directory.background.discard(self._retired, log.settings.file_delete_delay_ms)
        self._end(None)

    def _retry(self) -> None:
        log = self._log
        if self._directory.logs.get(log.partition) is not log:
            assert self._new is not None
            self._new.unpin()  # the log has closed it
            self._done(ApiError(Error.UNKNOWN_TOPIC_OR_PARTITION, "the log was deleted"))
        elif log.is_busy:
            self._directory.flusher.request(log, lambda _: self._retry())
        else:
            log.resume_swap()
            self._put_in_place()

    def _end(self, error: BaseException | None) -> None:
        self._log.end_swap()
        self._log.forget_snapshots()
        self._directory.flusher.request(self._log)  # some may have waited
        self._done(error)
