"""Clocks that move only when told to: the simulator's and the tests'."""

from __future__ import annotations

import math
from collections.abc import Callable


class VirtualClock:
    """The world's."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._start_ns = now_ms * 1_000_000
        self._passed_ns = 0
        self._waits = 0
        self.pause: Callable[[float], None] | None = None
        """While a thread runs that may be interrupted: lets others run for some ms."""

    def now_ms(self) -> int:
        return (self._start_ns + self.monotonic_ns()) // 1_000_000

    def monotonic_ns(self) -> int:
        return self._passed_ns

    def waits(self) -> int:
        return self._waits

    def wait_ms(self, ms: float) -> None:
        """Let `ms` pass, as in a call that waits for so long: `waits` counts it."""
        self._waits += 1
        if self.pause is not None:
            self.pause(ms)
        else:
            self.advance_ms(ms)

    def advance_ms(self, ms: float) -> None:
        """Let `ms` pass."""
        self.advance_ns(int(ms * 1_000_000))

    def advance_ns(self, ns: int) -> None:
        """Let `ns` pass."""
        assert ns >= 0, "time does not run backwards"
        self._passed_ns += ns


class ProcessClock(VirtualClock):
    """A process's view of the world's virtual clock: it may run fast, slow or wrong.

    To let time pass on it keeps the process busy: until the world's clock has come so far, it is
    ahead of that.
    """

    def __init__(self, world: VirtualClock) -> None:
        super().__init__(world.now_ms())
        self._start_ns -= world.monotonic_ns()
        self._world = world
        self._rate = 1.0
        self._skewed_at_ns = 0  # by the world's clock; from here on `_rate` holds
        self._passed_ns = 0  # by this clock, at that moment
        self.busy_until_ns = 0  # by the world's clock

    def world_ns(self) -> int:
        """What the world's clock will show once the process is no longer busy."""
        now_ns, busy_until_ns = self._world._passed_ns, self.busy_until_ns
        return now_ns if now_ns > busy_until_ns else busy_until_ns

    def monotonic_ns(self) -> int:
        passed_ns = self.world_ns() - self._skewed_at_ns
        return self._passed_ns + (passed_ns if self._rate == 1 else int(passed_ns * self._rate))

    def advance_ns(self, ns: int) -> None:
        assert ns >= 0, "time does not run backwards"
        self.busy_until_ns = self.world_ns() + ns

    def skew(self, rate: float, step_ms: int = 0) -> None:
        """Run at `rate` of the world's pace from now on; the wall-clock time jumps by a step.

        Timers that are set already keep their moment in the world.
        """
        self._passed_ns, self._skewed_at_ns = self.monotonic_ns(), self.world_ns()
        self._rate = rate
        self._start_ns += step_ms * 1_000_000

    def world_ns_at(self, own_ns: int) -> int:
        """What the world's clock will show when this one first shows `own_ns` or more."""
        own_ns -= self._passed_ns
        if self._rate != 1:
            world_ns = math.ceil(own_ns / self._rate)
            own_ns = world_ns + (int(world_ns * self._rate) < own_ns)
        return self._skewed_at_ns + own_ns


def first_ns(seconds: float) -> int:
    """The first nanosecond that is not before so many seconds.

    So whoever finds that the time of his timer has not come need not set it again to the same.
    """
    ns = math.ceil(seconds * 1e9)  # the product is rounded
    while ns / 1e9 < seconds:
        ns += 1
    while (ns - 1) / 1e9 >= seconds:
        ns -= 1
    return ns
