"""A process in virtual time: the simulator's. It can be killed, stopped and made to keep bad time.

As `AsyncioProcess`, but blocking work runs after a random delay, and its `done` is called after
another. Either it is done in an instant, or, if the process is given a `threads_rng`, a part of it
is interrupted at each call on the disk: so the loop sees half of what it does. A call that takes
time on the loop, of the simulated disk say, moves the process's own clock on: it runs nothing else
until the others' time has come that far.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from kdist.runtime.process import Process
from kdist.runtime.tasks import Done
from kdist.testing.virtual_clock import ProcessClock
from kdist.testing.virtual_loop import VirtualLoop

INTERRUPTED_SHARE = 0.3  # of blocking work
PAUSES_MS = (0.05, 0.5, 4.0)  # at each call: the mean of one piece of work


class Ended(BaseException):
    """The run is over, and so is what is left of the work. Not an `Exception`: no code is to handle
    it."""


class VirtualThread:
    """Work that pauses in the middle of a function, so that others run meanwhile.

    It has a thread of the operating system, but only for its stack: either that runs or the loop's
    does, and each waits for the other. So a run can be repeated as if there were none.
    Owner: the process. `pause_ms` says how long each pause is, beyond what was asked for.
    """

    def __init__(self, work: Callable[[], None], pause_ms: Callable[[], float]) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._pause_ms = pause_ms
        self._wanted_ms: float | None = None  # of the present pause; None: it is done
        self.is_over = False
        # Locks that one side takes and the other releases: whoever has no turn waits for its own.
        self._its_turn, self._others_turn = threading.Lock(), threading.Lock()
        self._its_turn.acquire()
        self._others_turn.acquire()
        self._thread: threading.Thread | None = None

    def go_on(self) -> float | None:
        """Run until the next pause, and return how many ms that is to last; None at the end.

        The work runs in the context of the first call.
        """
        self._wanted_ms = None
        if self._thread is None:
            run = copy_context().run
            self._thread = threading.Thread(target=run, args=(self._run,), daemon=True)
            self._thread.start()
        else:
            self._its_turn.release()
        self._others_turn.acquire()
        return self._wanted_ms

    def pause(self, ms: float) -> None:
        """Within the work: let the others run for so long, and a little more."""
        if not self.is_over:
            self._wanted_ms = ms + self._pause_ms()
            self._others_turn.release()
            self._its_turn.acquire()
        if self.is_over:
            raise Ended

    def end(self) -> None:
        """Have nothing more of it run, but what its `finally` clauses can do without a pause."""
        self.is_over = True
        while self.go_on() is not None:
            pass
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as raised:  # noqa: BLE001 - passed to the process, whatever it is
            self.error = raised
        self._others_turn.release()


class VirtualProcess(Process):
    """On `loop`; blocking work takes up to `blocking_ms_max`. Owner: whoever plays its machine."""

    clock: ProcessClock
    loop: VirtualLoop

    def __init__(
        self,
        loop: VirtualLoop,
        rng: random.Random,
        blocking_ms_max: float = 10.0,
        threads_rng: random.Random | None = None,
    ) -> None:
        super().__init__(loop, ProcessClock(loop.clock), rng)
        self.blocking_ms_max = blocking_ms_max
        self._threads_rng = threads_rng
        self._threads: dict[VirtualThread, None] = {}  # whose work is interrupted now
        self._is_stopped = False
        self._is_killed = False
        self._is_waking = False  # a timer is set for when it is no longer busy
        self._held: list[asyncio.Handle] = []  # what was due meanwhile
        self._remains: list[asyncio.Task[Any]] = []

    # Faults

    def kill(self) -> None:
        """End it as kill -9 does: nothing of it runs any more, no `finally` either."""
        self._is_killed = True
        # Collecting what is left would close coroutines, and that would run code of theirs.
        left: set[Any] = asyncio.all_tasks(self.loop)
        self._remains = [task for task in left if task.process is self]

    def pause(self) -> None:
        """Stop it as SIGSTOP does: what is due waits, what arrives for it too."""
        self._is_stopped = True

    def resume(self) -> None:
        """Let it go on, as SIGCONT does."""
        self._is_stopped = False
        self._release()

    def unwind(self) -> None:
        """End what is left of it, once the run is over and nobody looks any more."""
        self.on_failure = lambda _error: None
        self._is_stopped = self._is_killed = False
        self.clock.busy_until_ns = 0
        for thread in list(self._threads):
            thread.end()
        self._threads.clear()
        self._release()

    # What its loop asks

    def may_run(self, handle: asyncio.Handle) -> bool:
        """Whether it may run this now; else the handle is kept for later."""
        busy_until_ns = self.clock.busy_until_ns
        is_busy = busy_until_ns > self.loop.clock.monotonic_ns()
        if not (is_busy or self._is_stopped or self._is_killed):
            return True
        self._held.append(handle)
        if is_busy and not self._is_waking:
            self._is_waking = True
            self.loop.call_in_world(busy_until_ns / 1e9, self._wake)
        return False

    def _wake(self) -> None:
        self._is_waking = False
        self._release()

    def _release(self) -> None:
        held, self._held = self._held, []
        self.loop.run_again(held)

    # Blocking work

    def _submit(self, work: Callable[[], None], done: Done) -> None:
        rng, run = self._threads_rng, partial(self._work, work, done)
        if rng is not None and rng.random() < INTERRUPTED_SHARE:
            pause_ms = rng.choice(PAUSES_MS)
            thread = VirtualThread(work, lambda: rng.uniform(0, 2 * pause_ms))
            run = partial(self._go_on, thread, done)
        self._later(self._some_ms(), run)

    def _go_on(self, thread: VirtualThread, done: Done) -> None:
        """Let it work until its next pause, of which nothing else of the process knows."""
        if thread.is_over:
            return
        clock = self.clock
        busy_until_ns, clock.busy_until_ns = clock.busy_until_ns, 0
        clock.pause = thread.pause
        try:
            pause_ms = thread.go_on()
        finally:
            clock.pause, clock.busy_until_ns = None, busy_until_ns
        if pause_ms is None:
            self._threads.pop(thread, None)
            if thread.error is not None and not isinstance(thread.error, Exception):
                raise thread.error  # a PowerLoss
            self._later(self._some_ms(), partial(done, thread.error))
        else:
            self._threads[thread] = None
            self._later(pause_ms, partial(self._go_on, thread, done))

    def _work(self, work: Callable[[], None], done: Done) -> None:
        """On a thread, so the time that passes for it keeps the process from nothing."""
        clock, error = self.clock, None
        busy_until_ns, clock.busy_until_ns = clock.busy_until_ns, 0
        try:
            work()
        except Exception as raised:  # noqa: BLE001 - passed to `done`; a PowerLoss propagates
            error = raised
        finally:
            took_ns = clock.world_ns() - self.loop.clock.monotonic_ns()
            clock.busy_until_ns = busy_until_ns
        self._later(took_ns / 1e6 + self._some_ms(), partial(done, error))
        del error  # its traceback has this frame: see `Done`

    def _later(self, delay_ms: float, callback: Callable[[], None]) -> None:
        self.loop.call_later(delay_ms / 1000, callback, context=self.context)

    def _some_ms(self) -> float:
        return self.rng.uniform(0, self.blocking_ms_max / 2)
