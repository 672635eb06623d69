"""`Tasks` on an asyncio loop in virtual time: the simulator's, for code that uses asyncio.

As `AsyncioTasks`, but without threads: blocking work runs after a random delay, and its `done` is
called after another. A callback's exception goes to the loop's exception handler.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

from kdist.runtime.tasks import Done, Timer


class LoopTasks:
    """Callbacks on `loop`, whose time is virtual; blocking work takes up to `blocking_ms_max`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        blocking_ms_max: float = 10.0,
    ) -> None:
        self._loop = loop
        self._rng = rng
        self.blocking_ms_max = blocking_ms_max
        self._is_off = False

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_ms / 1000, callback)

    def run_blocking(self, work: Callable[[], None], done: Done) -> None:
        self.call_later(self._some_ms(), partial(self._work, work, done))

    def lose_power(self) -> None:
        """Drop blocking work that has not begun: its thread died with the machine."""
        self._is_off = True

    def _work(self, work: Callable[[], None], done: Done) -> None:
        if self._is_off:
            return
        error: Exception | None = None
        try:
            work()
        except Exception as raised:  # noqa: BLE001 - passed to `done`; a PowerLoss propagates
            error = raised
        self.call_later(self._some_ms(), partial(done, error))

    def _some_ms(self) -> float:
        return self._rng.uniform(0, self.blocking_ms_max / 2)
