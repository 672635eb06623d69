"""Long work as generators of steps, so that the event loop does other work in between.

`Steps` yields wherever it may be paused: None to give way, or blocking work that a thread may do,
since it touches nothing in use elsewhere. The generator's return value is the result. Abandoning it
with `close` leaves nothing behind that a kill of the process at that point would not.

A step takes a few milliseconds at most. What a thread is given releases the interpreter's lock for
nearly all of its time: it reads, or (de)compresses. Python code that computes is cut into steps
instead, as in a thread it would slow the loop down more than on it (design D2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from kdist.runtime.tasks import Tasks  # its asyncio takes long to load, and tools need none

T = TypeVar("T")

Work = Callable[[], None]
Steps = Generator[Work | None, None, T]


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
