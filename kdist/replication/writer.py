"""Appends on their way to the disk: at once while it is fast, on a thread while it is slow.

An append is written where it is asked for. Grouping those of a turn of the loop into one `writev`
for each partition was measured and left: reserving, writing and publishing in three steps takes
4.9 µs, `Log.append` in one go 3.0 µs, and the system call that a group would share is 0.8 µs of
each (one-record batches, Debian's Python 3.11).

Writes that take long mean that the disk holds up its writers. For some seconds a thread does them
for all partitions then, and the loop goes on with everything else. What is asked for while a write
of its partition is under way shares the next one, so that a slow disk gets few large writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kdist.errors import ApiError, DiskFull
from kdist.metrics.replication import ReplicationMetrics
from kdist.records.batch import Batch
from kdist.runtime.clock import Clock
from kdist.runtime.files import Buffer
from kdist.runtime.tasks import Tasks
from kdist.storage.append import Append, Appended
from kdist.storage.log import Log

THREAD_FOR_NS = 5_000_000_000
SLOW_NS = 2_000_000
SLOW_NS_PER_BYTE = 5  # and so much more for a large write, which takes its time in memory too
# A process that had to give up its core in between looks slow as well, on a busy machine every few
# milliseconds. So one slow write says nothing, unless no scheduler takes that long; a disk that is
# slow is so again soon.
VERY_SLOW_NS = 25_000_000
SOON_WRITES = 16

Done = Callable[[Appended | ApiError], None]
_Submitted = tuple[Append, Done]


class Writers:
    """What the writers of all partitions share: how the one disk does. Owner: `Replicas`."""

    def __init__(
        self,
        tasks: Tasks,
        clock: Clock,
        metrics: ReplicationMetrics,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`on_failure` hears of a disk that failed under a thread; nobody is answered then."""
        self.tasks = tasks
        self.clock = clock
        self.metrics = metrics
        self.on_failure = on_failure
        self.thread_until_ns = 0
        self.writes = 0
        self._slow_write = -SOON_WRITES - 1  # the number of the last one

    def note_slow(self, size: int, started_ns: int, ended_ns: int) -> None:
        """The last write took longer than `SLOW_NS`, wherever it was done."""
        took_ns = ended_ns - started_ns - size * SLOW_NS_PER_BYTE
        if took_ns <= SLOW_NS:
            return
        self.metrics.slow_writes += 1
        if took_ns > VERY_SLOW_NS or self.writes - self._slow_write <= SOON_WRITES:
            self.thread_until_ns = ended_ns + THREAD_FOR_NS
        self._slow_write = self.writes


class Writer:
    """One log's appends, in the order they are asked for. Owner: its partition."""

    __slots__ = (
        "_is_writing",
        "_log",
        "_monotonic_ns",
        "_published",
        "_queue",
        "_when_idle",
        "_writers",
    )

    def __init__(self, log: Log, writers: Writers, published: Callable[[], None]) -> None:
        """`published` is called when a thread's write has made the log grow."""
        self._log = log
        self._writers = writers
        self._monotonic_ns = writers.clock.monotonic_ns
        self._published = published
        self._queue: list[_Submitted] = []
        self._is_writing = False
        self._when_idle: list[Callable[[], None]] = []

    def append(
        self, batches: Sequence[Batch], leader_epoch: int, now_ms: int, done: Done
    ) -> Appended | None:
        """Append checked batches: what became of it, or None if `done` will be told later.

        Raises as `Log.append`; then `done` is not called.
        """
        started_ns, writers = self._monotonic_ns(), self._writers
        if self._is_writing or started_ns < writers.thread_until_ns:
            self._submit(batches, leader_epoch, now_ms, done)
            return None
        appended = self._log.append(batches, leader_epoch, now_ms)
        ended_ns = self._monotonic_ns()
        writers.writes += 1
        if ended_ns - started_ns > SLOW_NS:
            writers.note_slow(sum(len(data) for _, data in batches), started_ns, ended_ns)
        return appended

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call once nothing of this log is being written, perhaps at once."""
        if self._is_writing:
            self._when_idle.append(callback)
        else:
            callback()

    def _submit(self, batches: Sequence[Batch], leader_epoch: int, now_ms: int, done: Done) -> None:
        # Copied, since a request's bytes are gone when its turn of the loop ends.
        own = [Batch(header, bytearray(data)) for header, data in batches]
        self._queue.append((self._log.reserve(own, leader_epoch, now_ms), done))
        if not self._is_writing:
            self._is_writing = True
            # Not at once: what comes in this turn shares the write.
            self._writers.tasks.call_soon(self._write)

    def _write(self) -> None:
        submitted, self._queue = self._queue, []
        placed = [append for append, _ in submitted if append.duplicate is None]
        if not placed:  # they are of an earlier write, which is through
            self._end(submitted)
            return
        first = placed[0]
        buffers: list[Buffer] = [buffer for append in placed for buffer in append.buffers]
        first.segment.pin()
        file, times_ns = first.segment.file, [0, 0]

        def write() -> None:
            times_ns[0] = self._monotonic_ns()
            file.write(buffers, first.position)
            times_ns[1] = self._monotonic_ns()

        self._writers.tasks.run_blocking(write, partial(self._written, submitted, first, times_ns))

    def _written(
        self,
        submitted: list[_Submitted],
        first: Append,
        times_ns: list[int],
        error: BaseException | None,
    ) -> None:
        first.segment.unpin()
        if error is None:
            self._writers.writes += 1
            self._writers.note_slow(sum(append.size for append, _ in submitted), *times_ns)
            self._end(submitted)
        elif isinstance(error, DiskFull):
            # What was reserved in the meantime lies behind a hole now.
            submitted += self._queue
            self._queue = []
            self._log.abandon(first)
            for _, done in submitted:
                done(error)
            self._go_on()
        else:
            self._writers.on_failure(error)

    def _end(self, submitted: list[_Submitted]) -> None:
        now_ms = self._writers.clock.now_ms()
        for append, _ in submitted:
            self._log.publish(append, now_ms)
        self._published()
        for append, done in submitted:
            done(Appended(append.start_offset, append.end_offset, append.duplicate))
        self._go_on()

    def _go_on(self) -> None:
        if self._queue:
            self._write()
            return
        self._is_writing = False
        callbacks, self._when_idle = self._when_idle, []
        for callback in callbacks:
            callback()
