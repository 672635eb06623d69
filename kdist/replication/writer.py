"""Writing appends: on the event loop while the disk is fast, in a thread while it is slow.

An append is normally written inline. The batches of requests that come in one tick of the loop are
coalesced, and share a `pwritev`: 1.2 µs for each of fifty, where one alone takes 2.6 (one-record
batches, Debian's Python 3.11).

A disk on which writes block would block the loop. So after that, a thread does the writes of all
partitions for some seconds, and the loop goes on with everything else. Appends during a write of
their partition share the next one, so that a slow disk gets few large writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from kdist.errors import DiskFull, OutOfDescriptors
from kdist.metrics.replication import ReplicationMetrics
from kdist.replication.acceptance import RefusedBatches
from kdist.runtime.clock import Clock
from kdist.runtime.files import Buffer
from kdist.runtime.tasks import Tasks
from kdist.storage.append import Append
from kdist.storage.log import Log

logger = logging.getLogger(__name__)

THREAD_FOR_NS = 5_000_000_000
WATCH_FOR_NS = 5_000_000_000
SLOW_NS = 2_000_000
# The loop may wait for the disk for one hundredth of its time, and beyond that for this long.
WAITED_SHARE = 100
WAITED_NS_MAX = 50_000_000
SLOW_NS_PER_BYTE = 5  # added to `SLOW_NS`: a large write takes longer to copy, too
# After each write a thread waits for the interpreter lock, 5 ms and more.
PROOF_NS_IN_THREAD = 25_000_000
_LOG_EVERY_NS = 60_000_000_000

Batches = TypeVar("Batches", contravariant=True)


class Prepare(Protocol[Batches]):
    """One of `Log`'s `prepare` methods: batches, leader epoch, and the present time in ms."""

    def __call__(self, batches: Batches, leader_epoch: int, now_ms: int, /) -> Append: ...


class WriteTiming(NamedTuple):
    """How long a write took, and its voluntary context switches (0 if not measured)."""

    started_ns: int
    ended_ns: int
    waits: int


class Writers:
    """Whether the one disk is slow, as the writers of all partitions see it. Owner: `Replicas`.

    A write that takes long is no proof: on a busy machine the scheduler interrupts one every few
    milliseconds, and a thread would only add to the load. But waiting for a disk is a voluntary
    context switch. So after a slow write the following ones are watched for some seconds, and the
    thread takes over when those that were slow and waited add up to more than a hundredth of the
    time. Until a slow write, nothing is measured.

    One or two slow writes that waited are no proof either: any write may briefly wait for a lock of
    the filesystem, and the scheduler prolongs some of these. A thread started for them doubled the
    cost of produces of 256 KiB for the next seconds (a copy of each, and two threads contending for
    the interpreter), although the disk had delayed almost nothing.
    """

    def __init__(
        self,
        tasks: Tasks,
        clock: Clock,
        metrics: ReplicationMetrics,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`on_failure` is called if the disk fails in the thread; its appends are not answered."""
        self.tasks = tasks
        self.clock = clock
        self.metrics = metrics
        self.on_failure = on_failure
        self.refused = RefusedBatches()
        self.thread_until_ns = 0
        self.watch_until_ns = 0
        self._waited_ns = 0  # by slow writes, beyond the share that they may
        self._waited_until_ns = 0
        self._silent_until_ns = 0

    def note_slow(self, size: int, timing: WriteTiming) -> None:
        """Judge a write on the loop; if it was slow and waited, the thread may take over."""
        slow_ns = self._slow_ns(size, timing)
        if slow_ns and timing.waits:
            allowed_ns = (timing.ended_ns - self._waited_until_ns) // WAITED_SHARE
            self._waited_ns = max(0, self._waited_ns - allowed_ns) + slow_ns
            self._waited_until_ns = timing.ended_ns
            if self._waited_ns > WAITED_NS_MAX:
                self._have_thread(timing.ended_ns)

    def note_slow_in_thread(self, size: int, timing: WriteTiming) -> None:
        """Judge a write in the thread; if the disk was slow, the thread goes on for longer."""
        if self._slow_ns(size, timing) > PROOF_NS_IN_THREAD and timing.waits:
            self._have_thread(timing.ended_ns)

    def log_full(self, error: DiskFull) -> None:
        """Log that appends are refused, at most once a minute."""
        now_ns = self.clock.monotonic_ns()
        if now_ns >= self._silent_until_ns:
            self._silent_until_ns = now_ns + _LOG_EVERY_NS
            logger.error("appends are refused: %s", error)

    def _slow_ns(self, size: int, timing: WriteTiming) -> int:
        """How much too long the write took; 0 if it was not slow."""
        slow_ns = timing.ended_ns - timing.started_ns - size * SLOW_NS_PER_BYTE
        if slow_ns <= SLOW_NS:
            return 0
        self.metrics.slow_writes += 1
        self.watch_until_ns = max(self.watch_until_ns, timing.ended_ns + WATCH_FOR_NS)
        return slow_ns

    def _have_thread(self, now_ns: int) -> None:
        self.thread_until_ns = now_ns + THREAD_FOR_NS
        self.watch_until_ns = self.thread_until_ns + WATCH_FOR_NS


class LogWriter:
    """One log's appends, in the order of the requests. Owner: its partition."""

    __slots__ = (
        "_is_writing",
        "_log",
        "_monotonic_ns",
        "_published",
        "_queue",
        "_when_idle",
        "_writers",
    )

    def __init__(self, log: Log, writers: Writers, published: Callable[[Append], None]) -> None:
        """`published` gets the first append of a thread's write that has made the log grow."""
        self._log = log
        self._writers = writers
        self._monotonic_ns = writers.clock.monotonic_ns
        self._published = published
        self._queue: list[Append] = []
        self._is_writing = False
        self._when_idle: list[Callable[[], None]] = []

    def append(
        self, prepare: Prepare[Batches], batches: Batches, leader_epoch: int, now_ms: int
    ) -> Append:
        """Append as `prepare`, a method of the log, would.

        What is returned is published or, while a thread has to write it, will be. Raises as
        `prepare`, and `DiskFull`, for the first of the batches; then nothing was appended.
        """
        started_ns, writers = self._monotonic_ns(), self._writers
        waits = writers.clock.waits() if started_ns < writers.watch_until_ns else None
        try:
            append = prepare(batches, leader_epoch, now_ms)
            if self._is_writing or started_ns < writers.thread_until_ns:
                self._submit(append)
                return append
            self._log.complete_append(append, now_ms)
        except DiskFull as error:
            self._note_refused(error, 1)
            raise
        if self._monotonic_ns() - started_ns > SLOW_NS:
            self._note_slow(append, started_ns, waits)
        return append

    def _note_slow(self, append: Append, started_ns: int, waits: int | None) -> None:
        """Note a slow inline append. `waits`: the clock's count before it, if it was watched."""
        ended_ns, clock = self._monotonic_ns(), self._writers.clock
        waited = 0 if waits is None else clock.waits() - waits
        self._writers.note_slow(append.totals.size, WriteTiming(started_ns, ended_ns, waited))

    def _note_refused(self, error: DiskFull, appends: int) -> None:
        """Count and log refused appends; but `storage.directory` logs a lack of descriptors."""
        if not isinstance(error, OutOfDescriptors):
            self._log.context.metrics.refused_appends += appends
            self._writers.log_full(error)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` once no write of this log is in progress, perhaps at once."""
        if self._is_writing:
            self._when_idle.append(callback)
        else:
            callback()

    def _submit(self, append: Append) -> None:
        append.keep()
        self._queue.append(self._log.defer(append))
        if not self._is_writing:
            self._is_writing = True
            # Deferred, so that all appends of this tick share the write.
            self._writers.tasks.call_soon(self._write)

    def _write(self) -> None:
        submitted, self._queue = self._queue, []
        placed = [append for append in submitted if append.duplicate is None]
        if not placed:  # all are retries of appends in an earlier write, which has ended
            self._end(submitted)
            return
        first = placed[0]
        buffers: list[Buffer] = [buffer for append in placed for buffer in append.buffers]
        first.segment.pin()
        clock = self._writers.clock
        timings: list[WriteTiming] = []
        try:
            file = first.segment.file
        except DiskFull as error:  # no descriptor left
            self._written(submitted, first, timings, error)
            return

        def write() -> None:
            waits, started_ns = clock.waits(), clock.monotonic_ns()
            file.write(buffers, first.position)
            timings.append(WriteTiming(started_ns, clock.monotonic_ns(), clock.waits() - waits))

        self._writers.tasks.run_blocking(write, partial(self._written, submitted, first, timings))

    def _written(
        self,
        submitted: list[Append],
        first: Append,
        timings: list[WriteTiming],
        error: BaseException | None,
    ) -> None:
        first.segment.unpin()
        if error is None:
            size = sum(append.totals.size for append in submitted)
            self._writers.note_slow_in_thread(size, timings[0])
            self._end(submitted)
        elif isinstance(error, DiskFull):
            # Appends reserved meanwhile fail too: there would be a gap before them.
            submitted += self._queue
            self._queue = []
            self._log.abandon(first)
            self._note_refused(error, len(submitted))
            for append in submitted:
                for header, _ in append.batches:
                    self._writers.refused.note_batch(self._log.partition, header)
                append.end(error)
            self._go_on()
        else:
            self._writers.on_failure(error)

    def _end(self, submitted: list[Append]) -> None:
        now_ms = self._writers.clock.now_ms()
        for append in submitted:
            self._log.publish(append, now_ms)
        grown = next((each for each in submitted if each.duplicate is None), None)
        if grown is not None:
            self._published(grown)
        for append in submitted:
            append.end()
        self._go_on()

    def _go_on(self) -> None:
        if self._queue:
            self._write()
            return
        self._is_writing = False
        callbacks, self._when_idle = self._when_idle, []
        for callback in callbacks:
            callback()
