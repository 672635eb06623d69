"""Long work in steps, so that the event loop does other work in between.

It is a generator that yields wherever it may be paused, and that leaves nothing behind, when it is
abandoned with `close`, that a kill of the process at that point would not. What may happen in a
pause is the work's to think of. There are two kinds, for two that have them done in turns:

    Steps          None to give way, or blocking work for a thread;   LongWork: a step in each turn
                   its return value is the result                     of the loop
    CountedSteps   how many µs it has taken since it last did         Slices: 3 ms in each turn

What a thread is given touches nothing in use elsewhere, and releases the interpreter's lock for
nearly all of its time: it reads, or (de)compresses. Python code that computes is cut into steps
instead, as in a thread it would slow the loop down more than on it (design D2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from kdist.runtime.tasks import Tasks  # its asyncio takes long to load, and tools need none

T = TypeVar("T")

SLICE_US = 3_000  # on a machine half as fast it is 6 ms

Work = Callable[[], None]
Steps = Generator[Work | None, None, T]
CountedSteps = Iterator[int]
"""What it yields is counted and not measured, so that a simulation pauses it at the same places
each time. It is about right: of so many records, offsets or partitions one knows what they take."""


# Steps with a result


def run_steps(steps: Steps[T]) -> T:
    """Run all steps without a pause; return the result."""
    while True:
        try:
            work = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if work is not None:
            work()


def in_thread(call: Callable[[], T]) -> Steps[T]:
    """A step that a thread does: the result of `call`, or what it raises."""
    results: list[T] = []
    yield lambda: results.append(call())
    return results[0]


class _Job(NamedTuple):
    steps: Steps[Any]
    done: Callable[[Any], None]
    failed: Callable[[BaseException], None]
    work: Work | None = None  # what a thread has to do for it next
    error: BaseException | None = None  # what that raised


class LongWork:
    """Does the steps of several jobs in turns: one step in each turn of the loop.

    A job's first step is done at once, so that what is short never waits. No more than `jobs_max`
    are under way: each may hold what it has unpacked. Owner: `Replicas`.
    """

    def __init__(self, tasks: Tasks, jobs_max: int) -> None:
        self._tasks = tasks
        self._jobs_max = jobs_max
        self.under_way = 0
        self._waiting: deque[_Job] = deque()  # until fewer are
        self._ready: deque[_Job] = deque()  # for a step; a turn is scheduled while there are any

    def begin(
        self,
        steps: Steps[T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Call `done` with the result, perhaps at once.

        What the first step raises is raised here if it is done at once; else `failed` gets it.
        """
        if self.under_way >= self._jobs_max:
            self._waiting.append(_Job(steps, done, failed))
            return
        try:
            work = next(steps)
        except StopIteration as end:
            done(end.value)
            return
        self.go_on(steps, work, done, failed)

    def go_on(
        self,
        steps: Steps[T],
        work: Work | None,
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """As `begin`, for steps of which the caller has done the first, which yielded `work`."""
        job = _Job(steps, done, failed, work)
        if self.under_way >= self._jobs_max:
            self._waiting.append(job)
        else:
            self.under_way += 1
            self._continue(job)

    def _continue(self, job: _Job) -> None:
        if job.work is None:
            self._make_ready(job)
        else:
            self._tasks.run_blocking(job.work, partial(self._thread_ended, job))

    def _thread_ended(self, job: _Job, error: BaseException | None) -> None:
        self._make_ready(job._replace(work=None, error=error))

    def _make_ready(self, job: _Job) -> None:
        self._ready.append(job)
        if len(self._ready) == 1:
            self._tasks.call_soon(self._turn)

    def _turn(self) -> None:
        job = self._ready.popleft()
        if self._ready:
            self._tasks.call_soon(self._turn)
        steps = job.steps
        try:
            work = next(steps) if job.error is None else steps.throw(job.error)
        except StopIteration as end:
            self._end()
            job.done(end.value)
        except Exception as raised:  # noqa: BLE001 - its owner says what it costs
            self._end()
            job.failed(raised)
        else:
            self._continue(job._replace(work=work, error=None))
        finally:
            del job  # its error may have this frame in its traceback: see `tasks.Done`

    def _end(self) -> None:
        self.under_way -= 1
        if self._waiting:
            self.under_way += 1
            self._continue(self._waiting.popleft())


# Counted steps


def parted(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut into lists of at most `size`; one empty list if there is nothing."""
    rest = iter(items)
    part = list(islice(rest, size))
    yield part
    while part := list(islice(rest, size)):
        yield part


def take_slice(steps: CountedSteps) -> bool:
    """Do some of the work; returns whether there may be more."""
    taken_us = 0
    for step_us in steps:
        taken_us += step_us
        if taken_us >= SLICE_US:
            return True
    return False


class _Counted(NamedTuple):
    steps: CountedSteps
    done: Callable[[], None]


class Slices:
    """An owner's long works: in each tick of the loop one slice of one of them, in turn."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """`call_soon` runs a callback in the loop's next tick."""
        self._call_soon = call_soon
        self._jobs: deque[_Counted] = deque()
        self._is_busy = False  # in a slice, or the next one is scheduled

    def add(self, steps: CountedSteps, done: Callable[[], None] = lambda: None) -> None:
        """Do the work, its first slice at once if nothing else is under way; then call `done`."""
        self._jobs.append(_Counted(steps, done))
        if not self._is_busy:
            self._go_on()

    def finish(self) -> None:
        """Do all that is left in one go."""
        while self._jobs:
            job = self._jobs.popleft()
            for _ in job.steps:
                pass
            job.done()

    def _go_on(self) -> None:
        self._is_busy = True
        try:
            if self._jobs:  # else finished meanwhile
                job = self._jobs.popleft()
                if take_slice(job.steps):
                    self._jobs.append(job)
                else:
                    job.done()
        finally:  # a work that fails takes no other along
            self._is_busy = bool(self._jobs)
            if self._is_busy:
                self._call_soon(self._go_on)
