"""Wall-clock and monotonic time, behind an interface that lets a test stop the clock."""

from __future__ import annotations

import resource
import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: wall-clock time, which may jump, and monotonic time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch: for timestamps that people and other hosts read."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds from some fixed point: for measuring and for timeouts."""
        ...

    def waits(self) -> int:
        """This thread's voluntary context switches so far.

        Their growth tells whether a slow call waited for something or was kept from running.
        """
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic_ns = staticmethod(time.monotonic_ns)  # four calls a request: no Python frame each

    def waits(self) -> int:
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class VirtualClock:
    """A clock that moves only when told to: the simulator's and the tests'."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ns = now_ms * 1_000_000
        self._start_ns = self._now_ns
        self._waits = 0

    def now_ms(self) -> int:
        return self._now_ns // 1_000_000

    def monotonic_ns(self) -> int:
        return self._now_ns - self._start_ns

    def waits(self) -> int:
        return self._waits

    def wait_ms(self, ms: float) -> None:
        """Let `ms` pass, as in a call that waits for so long: `waits` counts it."""
        self._waits += 1
        self.advance_ms(ms)

    def advance_ms(self, ms: float) -> None:
        """Let `ms` pass."""
        self.advance_ns(int(ms * 1_000_000))

    def advance_ns(self, ns: int) -> None:
        """Let `ns` pass."""
        assert ns >= 0, "time does not run backwards"
        self._now_ns += ns
