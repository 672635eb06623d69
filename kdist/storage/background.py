"""Background work of a log directory: creating and removing files, writeback, saving offsets.

A directory with four files took ext4 0.3 to 1.4 ms when hundreds were created, so creating hundreds
of partitions does not wait for that: a new log's files are created a little later, or before its
first append. A log without files has nothing to lose: after a power loss it is created again when
the controller next sends its state. If it is deleted before, it was never on the disk. Nothing is
synced: a start sets aside what a power loss has left without the topic's id.

Nobody awaits what is done here, so `DirectoryContext.on_failure` is told of its errors.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.errors import ApiError, DiskFailed, DiskFull, KdistError
from kdist.metrics.storage import StorageMetrics
from kdist.runtime.clock import Clock
from kdist.runtime.files import Files
from kdist.runtime.tasks import Done, Tasks
from kdist.storage.log import Log
from kdist.storage.meta import encode_partition_metadata
from kdist.storage.names import PARTITION_METADATA
from kdist.storage.segment import Segment

logger = logging.getLogger(__name__)

_DELAY_MS = 1_000  # after the answers are sent, and perhaps after the topic is deleted again
_PAUSE_SHARE = 3  # pause between two for this multiple of the time one took: the loop is busy
_NS_PER_MS = 1_000_000


class DirectoryContext(NamedTuple):
    """What a log directory is given by its owner."""

    files: Files
    clock: Clock
    tasks: Tasks
    rng: random.Random
    settings: StorageSettings
    metrics: StorageMetrics
    settings_of: Callable[[str], TopicSettings]
    """The settings of a topic by its name, for the logs that are found at start."""
    on_failure: Callable[[BaseException], None]
    """Called when the disk failed, so that nothing in the directory is trusted any more."""
    boot_id: str = ""
    """The host's: another one after each start of the host."""

    def refusal(self, work: Callable[[], None]) -> KdistError | None:
        """Do disk work inside a callback, and return its error for the requester.

        `DiskFailed` is also reported to `on_failure`, since no caller would catch it.
        """
        try:
            work()
        except ApiError as error:
            return error
        except DiskFailed as error:
            self.on_failure(error)
            return error
        return None


class _Pending(NamedTuple):
    metadata: bytes  # content of partition.metadata
    due_ns: int  # when to create its files in the background


class FileCreator:
    """Creates the files of new logs. Owner: the log directory."""

    def __init__(self, context: DirectoryContext) -> None:
        self._files = context.files
        self._tasks = context.tasks
        self._clock = context.clock
        self._on_failure = context.on_failure
        self._pending: dict[Log, _Pending] = {}
        self._half_created: set[Log] = set()  # those whose partial files could not be removed
        self._is_scheduled = False

    def add(self, log: Log, topic_id: uuid.UUID) -> None:
        """Note a new log, which has no directory yet. Its first flush makes its files durable."""
        metadata = encode_partition_metadata(topic_id)
        self._pending[log] = _Pending(metadata, self._clock.monotonic_ns() + _DELAY_MS * _NS_PER_MS)
        log.postpone_files(metadata)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._tasks.call_later(_DELAY_MS, self._create_next)

    def forget(self, log: Log) -> None:
        """Forget a log deleted before it had files. `DiskFull` if partial files remain."""
        if log in self._half_created:
            self._remove(log)
        del self._pending[log]

    def create(self, log: Log) -> None:
        """Create its files. Raises `DiskFull`, and then there are none, and `DiskFailed`."""
        files = self._files
        if log in self._half_created:
            self._remove(log)
        files.make_directory(log.directory)
        try:
            # First: without it, records could be taken for those of a later topic of this name.
            path = f"{log.directory}/{PARTITION_METADATA}"
            files.replace(path, self._pending[log].metadata, durable=False)
            log.create_files()
        except DiskFull:
            self._half_created.add(log)
            self._remove(log)
            raise
        del self._pending[log]

    def _remove(self, log: Log) -> None:
        """Remove its partial files. That may fail for lack of a descriptor; then retry later."""
        self._files.remove_tree(log.directory)
        self._half_created.discard(log)

    def _create_next(self) -> None:
        """Create the oldest one's, if due; the others later, as there may be thousands."""
        log = next(iter(self._pending), None)
        self._is_scheduled = log is not None
        if log is None:
            return
        started_ns = self._clock.monotonic_ns()
        wait_ns = self._pending[log].due_ns - started_ns
        if wait_ns <= 0:
            try:
                self.create(log)
            except DiskFull as error:
                self._is_scheduled = False
                logger.warning("%s: new partitions get their files with their first records", error)
                return
            except DiskFailed as error:
                self._on_failure(error)
                return
            log.close_idle()
            wait_ns = _PAUSE_SHARE * (self._clock.monotonic_ns() - started_ns)
        self._tasks.call_later(wait_ns / _NS_PER_MS, self._create_next)


class _Removal(NamedTuple):
    path: str  # the first one, for the log line
    work: Callable[[], None]


class Background:
    """Removes files, and starts writeback. Owner: the log directory."""

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


class OffsetSaver:
    """Saves offset checkpoints in a thread; each request is served by a save that began after it.

    Owner: the log directory. One save runs at a time, so an older never overwrites a newer.
    """

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
