"""Flushing: what a flush of a log covers, and how requests for flushes share them.

A `FlushJob` records on the owner's thread what is to be synced; `plan_flush` makes of several jobs
one blocking call, which touches nothing but files; `finish` moves the recovery point. The `Flusher`
runs one batch of jobs at a time, since a disk has one head; requests meanwhile share the next one.

A log's *flush mark* says that all that it ever exposed is flushed: as a leader below the high
watermark, as a follower by telling the leader its end. So with the page cache such a log loses
nothing that is committed, whatever the others lose.

    flush.before.expose   the log                              its mark
    comes                 exposes flushed records alone        is written by the first flush that
                                                               begins then, after its sync
    goes                  goes on so until the mark is gone    is removed by the next flush, durably
    on at creation        exposes flushed records alone        comes with its files

The mark's name has the disk's content id (`meta.note_boot`): it tells nothing of earlier contents,
of which the log may lack some.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kdist.errors import DiskFailed, DiskFull, KdistError
from kdist.model import TopicPartition
from kdist.runtime.files import File, Files
from kdist.runtime.tasks import Done
from kdist.storage.background import DirectoryContext
from kdist.storage.log import Log, LogContext
from kdist.storage.meta import BootNote
from kdist.storage.names import flush_mark_in
from kdist.storage.producers import ProducerStates, encode_snapshot

logger = logging.getLogger(__name__)

# With this many segments or more, one syncfs is faster than a fdatasync for each
# (benchmarks/bench_log.py), and takes fewer descriptors.
SYNC_FILESYSTEM_FROM = 16


class FlushJob:
    """Everything that must reach the disk so that `log` is durable below `end_offset`.

    The log is not truncated while it has a job.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.end_offset = log.end_offset
        # Invariant: a mark is written only for what was to be flushed first when the job began.
        self.is_flushed_first = log.settings.flush_before_expose
        self.is_mark_due = self.is_mark_changed = False
        self.unsynced = unsynced = log.begin_flush()
        since = log.segments[log.segment_index(log.recovery_point) :]
        self.sealed = {*unsynced.sealed, *since[:-1]}
        self.segments = list(dict.fromkeys([*unsynced.sealed, *since]))
        for segment in self.segments:
            segment.pin()

    def complete_files(self) -> None:
        """Create the log's files if need be; write sealed segments' indexes. Raises `DiskFull`."""
        if not self.log.has_files:
            self.log.context.create_files(self.log)
        self.is_mark_due = self.log.has_mark_due
        for segment in self.sealed:
            segment.write_indexes()

    def spares(self) -> list[tuple[File, int]]:
        """Sealed segments' files with disk space reserved beyond their end; with their sizes."""
        spares = (segment for segment in self.sealed if segment.has_spare_space)
        return [(segment.file, segment.size) for segment in spares]

    def targets(self) -> list[File]:
        """The files to sync. Call it on the owner's thread, since it may open them."""
        return [
            file
            for segment in self.segments
            for file in segment.sync_targets(is_sealed=segment in self.sealed)
        ]

    def save_files(self, files: Files, *, durable: bool) -> None:
        """Write the log's small files. May block."""
        for path, content in self.unsynced.files_to_save.items():
            data = encode_snapshot(content) if isinstance(content, ProducerStates) else content
            files.replace(path, data, durable=durable)

    def change_mark(self, files: Files) -> None:
        """Write the flush mark, or remove it; durable once the directory is synced. May block."""
        directory = self.log.directory
        if self.is_flushed_first:
            files.replace(self.log.flush_mark_path, b"", durable=False)
            return
        for name in files.list(directory):
            if flush_mark_in(name) is not None:
                files.remove(f"{directory}/{name}")

    @property
    def has_tried(self) -> bool:
        """Whether it has tried to change the mark as it would have to be now."""
        is_first = self.log.settings.flush_before_expose
        return self.is_mark_due and is_first == self.is_flushed_first

    def finish(self) -> None:
        """All of it is on the disk: move the recovery point."""
        for segment in self.segments:
            segment.unpin()
        for segment in self.sealed:
            segment.preallocated = segment.size
        if self.is_mark_due:
            is_marked = self.is_mark_changed and self.is_flushed_first
            content_id = self.log.context.content_id if is_marked else None
            self.log.note_flush_mark(content_id, is_sure=self.is_mark_changed)
        self.log.finish_flush(self.end_offset)

    def give_up(self) -> None:
        """The flush failed for lack of space: put everything back for the next one."""
        for segment in self.segments:
            segment.unpin()
        self.log.give_up_flush(self.unsynced, self.sealed)


def plan_flush(files: Files, path: str, jobs: Sequence[FlushJob]) -> Callable[[], None]:
    """The blocking part of these jobs, as one call. `path` is on the filesystem of all of them.

    Raises `DiskFull` if a new file or an index does not fit, and `DiskFailed`.
    """
    for job in jobs:
        job.complete_files()
    spares = [spare for job in jobs for spare in job.spares()]
    if sum(len(job.segments) for job in jobs) >= SYNC_FILESYSTEM_FROM:

        def sync_all() -> None:
            for job in jobs:
                job.save_files(files, durable=False)
            files.sync_filesystem(path)
            _give_back(spares)
            _change_marks(files, path, jobs)

        return sync_all

    targets = [file for job in jobs for file in job.targets()]

    def sync_each() -> None:
        for job in jobs:
            job.save_files(files, durable=True)
            for directory in sorted(job.unsynced.renamed_in):
                files.sync_directory(directory)
        for file in targets:
            file.sync()
        _give_back(spares)
        _change_marks(files, path, jobs)

    return sync_each


def _change_marks(files: Files, path: str, jobs: Sequence[FlushJob]) -> None:
    """Write and remove the flush marks that are due, now that all else is on the disk.

    Without room for that they stay due: the flush has succeeded all the same.
    """
    due = [job for job in jobs if job.is_mark_due]
    try:
        for job in due:
            job.change_mark(files)
        if len(due) >= SYNC_FILESYSTEM_FROM:
            files.sync_filesystem(path)
        else:
            for job in due:
                files.sync_directory(job.log.directory)
    except DiskFull as error:
        logger.warning("%s: flush marks are changed once there is room", error)
    else:
        for job in due:
            job.is_mark_changed = True


def _give_back(spares: Sequence[tuple[File, int]]) -> None:
    """Truncate files to their size, which frees reserved space; quick only after a sync."""
    for file, size in spares:
        file.truncate(size)


def flush_now(files: Files, path: str, logs: Iterable[Log]) -> None:
    """Flush these logs before returning: at start and stop, when nothing else is going on."""
    jobs = [FlushJob(log) for log in logs]
    try:
        plan_flush(files, path, jobs)()
    except DiskFull:
        for job in jobs:
            job.give_up()
        raise
    for job in jobs:
        job.finish()


def valid_mark(context: LogContext, found: Sequence[str]) -> str | None:
    """The flush mark that tells most, of those found: one of a content that a controller has judged
    the replicas by. One of any other but the present content is worth nothing.
    """
    vetted = (each for each in found if each in context.vetted)
    return next(vetted, context.content_id if context.content_id in found else None)


def flushed_partitions(logs: Mapping[TopicPartition, Log], note: BootNote) -> dict[str, set[int]]:
    """Those, by topic, that have lost nothing committed since a controller has judged the replicas.

    By the flush marks that they were opened with; none if there is no loss that it does not know.
    """
    found: dict[str, set[int]] = {}
    if note.content_id not in note.vetted:
        for (topic, number), log in logs.items():
            if log.flush_mark in note.vetted:
                found.setdefault(topic, set()).add(number)
    return found


class _Waiter(NamedTuple):
    end_offset: int
    done: Done


class _Request:
    """The flush requested for one log, up to `end_offset`, and those who wait for parts of it."""

    __slots__ = ("end_offset", "waiters")

    def __init__(self) -> None:
        self.end_offset = 0
        self.waiters: list[_Waiter] = []

    def take(self, end_offset: int) -> list[Done]:
        """Remove and return the waiters that a flush up to `end_offset` serves."""
        served = [waiter.done for waiter in self.waiters if waiter.end_offset <= end_offset]
        self.waiters = [waiter for waiter in self.waiters if waiter.end_offset > end_offset]
        return served

    def cut(self, end_offset: int) -> list[Done]:
        """Reduce the request to `end_offset`; remove and return the waiters for more than that."""
        gone = [waiter.done for waiter in self.waiters if waiter.end_offset > end_offset]
        self.waiters = [waiter for waiter in self.waiters if waiter.end_offset <= end_offset]
        self.end_offset = min(self.end_offset, end_offset)
        return gone


class Flusher:
    """Owner: the log directory. `on_failure` is called if the disk fails.

    The `on_flushed` callbacks get each log whose recovery point has moved.
    """

    def __init__(self, context: DirectoryContext, path: str) -> None:
        self._files = context.files
        self._path = path
        self._tasks = context.tasks
        self._clock = context.clock
        self._metrics = context.metrics
        self._on_failure = context.on_failure
        self._wanted: dict[Log, _Request] = {}
        self._is_scheduled = False
        self._running: list[FlushJob] = []
        self._started_ns = 0
        self.on_flushed: list[Callable[[Log], None]] = []

    def request(self, log: Log, done: Done | None = None) -> None:
        """Flush what is in `log` now; then call `done`, with the error if that failed."""
        request = self._wanted.setdefault(log, _Request())
        request.end_offset = log.end_offset
        if done is not None:
            request.waiters.append(_Waiter(log.end_offset, done))
        if not self._is_scheduled and not self._running:
            self._is_scheduled = True
            # Deferred, so that everything appended in this tick of the loop shares the flush.
            self._tasks.call_soon(self._start)

    def cut(self, log: Log, end_offset: int, error: KdistError) -> None:
        """The log now ends at `end_offset`: fail the waits for flushes beyond it with `error`."""
        request = self._wanted.get(log)
        if request is None:
            return
        gone = request.cut(end_offset)
        if request.end_offset <= log.recovery_point and not request.waiters:
            del self._wanted[log]
        for done in gone:
            done(error)

    @property
    def is_idle(self) -> bool:
        return not self._running and not self._wanted

    def _start(self) -> None:
        self._is_scheduled = False
        self._running = [FlushJob(log) for log in self._wanted if not log.is_busy]
        if not self._running:
            return
        self._started_ns = self._clock.monotonic_ns()
        try:
            work = plan_flush(self._files, self._path, self._running)
        except (DiskFailed, DiskFull) as error:
            self._end(error)
        else:
            self._tasks.run_blocking(work, self._end)

    def _end(self, error: BaseException | None) -> None:
        self._metrics.flush_seconds.observe((self._clock.monotonic_ns() - self._started_ns) / 1e9)
        jobs, self._running = self._running, []
        if error is not None:
            self._fail(jobs, error)
            return
        served: list[Done] = []
        for job in jobs:
            job.finish()
            request = self._wanted.get(job.log)
            if request is not None:
                served += request.take(job.end_offset)
                if request.end_offset <= job.end_offset:
                    del self._wanted[job.log]
        for done in served:
            done(None)
        for job in jobs:
            for callback in self.on_flushed:
                callback(job.log)
            if job.log.has_mark_due and not job.has_tried and not job.log.is_closed:
                self.request(job.log)  # the setting has changed since the job began
        if self._wanted and not self._is_scheduled and not self._running:
            self._start()

    def _fail(self, jobs: Sequence[FlushJob], error: BaseException) -> None:
        """No recovery point moves: what was not synced may be lost."""
        requests, self._wanted = self._wanted, {}
        if isinstance(error, DiskFull):
            for job in jobs:
                job.give_up()
        else:
            # The jobs stay open, and no other starts: after a failed sync, a later one that
            # succeeds proves nothing, and after a failed syncfs, nothing is proved of any log.
            self._running = list(jobs)
            self._on_failure(error)
        for request in requests.values():
            for waiter in request.waiters:
                waiter.done(error)
