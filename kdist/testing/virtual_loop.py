"""An asyncio event loop in virtual time: the simulator's and the tests'.

When nothing is left to run now, time jumps to the next timer. There are no sockets, threads or
signals, so the same seed gives the same run, as long as the code does not depend on the order of
`id`s or of a set of strings. A main coroutine that waits while nothing is scheduled raises
`Deadlock`; an exception in a callback is raised by the run, unless the callback belongs to a
process with an owner (`process.py`). A killed process runs nothing any more, a stopped one later;
in its code `time()` is its own, which may be wrong.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from typing import Any, NoReturn

from kdist.runtime.process import CURRENT, Process, process_of
from kdist.testing.virtual_clock import VirtualClock, first_ns


class Deadlock(Exception):
    """The main coroutine is not done, and nothing is scheduled that could wake it."""


class _Reached(Exception):
    """What `run_until` waits for has come, or its time is over."""


class _Task(asyncio.Task[Any]):
    """A task that knows its process."""

    process: Process | None = None


def _make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: Context | None = None
) -> _Task:
    task = _Task(work, loop=loop, context=context)
    task.process = CURRENT.get() if context is None else context.get(CURRENT)
    return task


class _Handle(asyncio.Handle):
    """A base class that has nothing to do with debugging: histories make a million of them."""

    __slots__ = ()

    def __init__(  # deliberately without the base class's
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop, self._callback, self._args = loop, callback, args
        self._cancelled, self._repr, self._source_traceback = False, None, None


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop whose `time()` is `clock`'s. Only the loop moves that clock while it runs."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock
        self.set_task_factory(_make_task)  # type: ignore[arg-type]
        self._ready: deque[asyncio.Handle]  # the base class's, as are these:
        self._stopping: bool
        # A heap: the ns of the world's clock when each is due, then how many timers are older.
        self._scheduled: list[tuple[int, int, Any]]
        self._timers_made = 0
        self._no_process = Context()
        self._raised: BaseException | None = None
        self._is_reached: Callable[[], bool] | None = None  # of `run_until`
        self._end_ns: float = math.inf
        self.before_time_moves: Callable[[], None] = lambda: None

    # Time

    def time(self) -> float:
        """Seconds on the clock of the process whose code asks, or else on the world's."""
        process = CURRENT.get()
        clock = self.clock if process is None else process.clock
        return clock.monotonic_ns() / 1e9

    def call_at(  # type: ignore[override] # its types are stricter than Python 3.11 can express
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        process: Any = CURRENT.get()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        due_ns = first_ns(when)
        self._add(due_ns if process is None else process.clock.world_ns_at(due_ns), timer)
        return timer

    def _add(self, due_ns: int, handle: asyncio.Handle) -> None:
        self._timers_made += 1
        heapq.heappush(self._scheduled, (due_ns, self._timers_made, handle))

    def call_soon(  # type: ignore[override] # as above
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_in_world(self, when_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Call it at `when_s` by the world's clock, whatever becomes of the caller's process."""
        self._add(first_ns(when_s), _Handle(callback, args, self, self._no_process))

    def world_time(self) -> float:
        """Seconds on the world's clock; for a process that is busy, when it no longer is."""
        process: Any = CURRENT.get()
        ns: int = self.clock.monotonic_ns() if process is None else process.clock.world_ns()
        return ns / 1e9

    # Running

    def run_forever(self) -> None:
        """Run until `stop`, or until something raises."""
        super().run_forever()
        self._raise()

    def run_until(self, condition: Callable[[], bool], timeout_ms: float = math.inf) -> bool:
        """Run until `condition` holds; False if first `timeout_ms` pass or nothing is left."""
        self._is_reached = condition
        self._end_ns = self.clock.monotonic_ns() + timeout_ms * 1_000_000
        try:
            self.run_forever()
        except _Reached:
            pass
        finally:
            self._is_reached = None
        return condition()

    def run_for_ms(self, ms: float) -> None:
        """Let `ms` pass, and run what comes due."""
        self.run_until(lambda: False, ms)

    def run_again(self, handles: Iterable[asyncio.Handle]) -> None:
        """Run callbacks that were due before, soon."""
        self._ready.extend(handles)

    def _raise(self) -> None:
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    def _run_once(self) -> None:
        """Move time to the next timer if nothing is ready; then run what is ready and due."""
        ready, timers, clock = self._ready, self._scheduled, self.clock
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        now_ns = clock._passed_ns
        if ready or self._stopping or (timers and timers[0][0] <= now_ns):
            self._begin_turn(0)
        else:
            self._begin_turn(timers[0][0] - now_ns if timers else None)
            now_ns = clock._passed_ns
        while timers and timers[0][0] <= now_ns:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):  # what they schedule runs in the next tick
            handle: Any = ready.popleft()
            if not handle._cancelled:
                process = handle._context.get(CURRENT)
                if process is None or process.may_run(handle):
                    handle._run()

    def _begin_turn(self, pause_ns: int | None) -> None:
        """Begin a tick, `pause_ns` after the last; None means no timer, and nothing to run."""
        if self._raised is not None:
            self._raise()
        if self._is_reached is not None:
            self._check_reached(self._is_reached, pause_ns)
        if pause_ns is None:
            raise Deadlock(_deadlock_sentence(self))
        if pause_ns > 0:
            self.before_time_moves()
            self.clock.advance_ns(pause_ns)

    def _check_reached(self, is_reached: Callable[[], bool], pause_ns: int | None) -> None:
        if is_reached():
            raise _Reached
        left_ns = self._end_ns - self.clock.monotonic_ns()
        if pause_ns is None or pause_ns > left_ns + 1:  # sums of seconds may be a nanosecond more
            if left_ns < math.inf:
                self.clock.advance_ns(max(0, int(left_ns)))
            raise _Reached

    def _write_to_self(self) -> None:
        """Does nothing: `call_soon_threadsafe` wakes a sleeping loop, and this one never sleeps."""

    # Errors

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """End the process that it happened to, or else the run, before time moves on."""
        error = context.get("exception") or RuntimeError(str(context["message"]))
        process = process_of(context)
        if process is not None and process.on_failure is not None:
            process.on_failure(error)
        else:
            self.end_run(error)

    def end_run(self, error: BaseException) -> None:
        """Have the run raise this, before time moves on."""
        if self._raised is None:
            self._raised = error

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:  # type: ignore[override] # noqa: ARG002
        """Refused: how long a thread takes is not reproducible."""
        raise RuntimeError("threads have no place in virtual time: use Process.run_blocking")


def _deadlock_sentence(loop: asyncio.AbstractEventLoop) -> str:
    waiting = sorted(str(task.get_coro()) for task in asyncio.all_tasks(loop))
    return f"nothing is scheduled, and {len(waiting)} tasks wait: {'; '.join(waiting)}"
