"""The time of day and the time that passes, behind an interface that a test can stop."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: the wall's, which may jump, and one that only goes forward."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch: for timestamps that people and other hosts read."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds from some fixed point: for measuring and for timeouts."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


class VirtualClock:
    """A clock that moves only when told to: the simulator's and the tests'."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ns = now_ms * 1_000_000
        self._start_ns = self._now_ns

    def now_ms(self) -> int:
        return self._now_ns // 1_000_000

    def monotonic_ns(self) -> int:
        return self._now_ns - self._start_ns

    def advance_ms(self, ms: float) -> None:
        """Let `ms` pass."""
        self.advance_ns(int(ms * 1_000_000))

    def advance_ns(self, ns: int) -> None:
        """Let `ns` pass."""
        assert ns >= 0, "time does not run backwards"
        self._now_ns += ns
