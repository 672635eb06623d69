"""A process in virtual time: the simulator's. It can be killed, stopped and made to keep bad time.

As `AsyncioProcess`, but without threads: blocking work runs after a random delay, and its `done` is
called after another. A call that takes time, of the simulated disk say, moves the process's own
clock on: it runs nothing else until the others' time has come that far.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from kdist.runtime.clock import ProcessClock
from kdist.runtime.process import Process
from kdist.runtime.tasks import Done
from kdist.runtime.virtual_loop import VirtualLoop


class VirtualProcess(Process):
    """On `loop`; blocking work takes up to `blocking_ms_max`. Owner: whoever plays its machine."""

    clock: ProcessClock
    loop: VirtualLoop

    def __init__(
        self, loop: VirtualLoop, rng: random.Random, blocking_ms_max: float = 10.0
    ) -> None:
        super().__init__(loop, ProcessClock(loop.clock), rng)
        self.blocking_ms_max = blocking_ms_max
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
        self._later(self._some_ms(), partial(self._work, work, done))

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

    def _later(self, delay_ms: float, callback: Callable[[], None]) -> None:
        self.loop.call_later(delay_ms / 1000, callback, context=self.context)

    def _some_ms(self) -> float:
        return self.rng.uniform(0, self.blocking_ms_max / 2)
