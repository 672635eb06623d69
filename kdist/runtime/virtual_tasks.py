"""`Tasks` in virtual time: the simulator's and the tests'.

Events wait in one queue, ordered by due time, then by arrival. Running them moves the clock from
one to the next, so that an hour passes in no time. Blocking work runs after a random delay and its
`done` is called after another, with other events in between, as with threads. The same seed gives
the same run.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from kdist.runtime.clock import VirtualClock
from kdist.runtime.tasks import Done


class VirtualTimer:
    """A callback in the queue."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None  # frees what it refers to; the event stays queued until it is due


class Event(NamedTuple):
    """An entry of the queue: sorts by due time, then by order of arrival."""

    due_ns: int
    number: int
    timer: VirtualTimer


class VirtualTasks:
    """The owner of `clock`: time passes only while one of its `run_` methods runs."""

    def __init__(
        self, clock: VirtualClock, rng: random.Random, blocking_ms_max: float = 10.0
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._blocking_ms_max = blocking_ms_max
        self._events: list[Event] = []
        self._events_count = 0

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_later(0, callback)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> VirtualTimer:
        timer = VirtualTimer(callback)
        due_ns = self._clock.monotonic_ns() + int(max(0, delay_ms) * 1_000_000)
        self._events_count += 1
        heapq.heappush(self._events, Event(due_ns, self._events_count, timer))
        return timer

    def run_blocking(self, work: Callable[[], None], done: Done) -> None:
        self.call_later(self._some_ms(), partial(self._work, work, done))

    def _work(self, work: Callable[[], None], done: Done) -> None:
        error: Exception | None = None
        try:
            work()
        except Exception as raised:  # noqa: BLE001 - passed to `done`; a PowerLoss propagates
            error = raised
        self.call_later(self._some_ms(), partial(done, error))

    def _some_ms(self) -> float:
        return self._rng.uniform(0, self._blocking_ms_max / 2)

    def run_until_idle(self) -> None:
        """Run until the queue is empty; never returns if a callback keeps rescheduling itself."""
        while self._events:
            self._run_next()

    def run_for_ms(self, ms: float) -> None:
        """Let `ms` pass, and run the callbacks that come due."""
        end_ns = self._clock.monotonic_ns() + int(ms * 1_000_000)
        while self._events and self._events[0].due_ns <= end_ns:
            self._run_next()
        self._advance_to(end_ns)

    def run_until(self, condition: Callable[[], bool], timeout_ms: float) -> bool:
        """Run until `condition` holds; False if `timeout_ms` pass or the queue empties first."""
        end_ns = self._clock.monotonic_ns() + int(timeout_ms * 1_000_000)
        while not condition():
            if not self._events or self._events[0].due_ns > end_ns:
                return False
            self._run_next()
        return True

    def _run_next(self) -> None:
        event = heapq.heappop(self._events)
        callback = event.timer.callback
        if callback is not None:
            self._advance_to(event.due_ns)
            event.timer.callback = None
            callback()

    def _advance_to(self, due_ns: int) -> None:
        self._clock.advance_ns(max(0, due_ns - self._clock.monotonic_ns()))
