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

    def wait_ms(self, ms: float) -> None:
        """Let `ms` pass, in a process or thread that has nothing else to do."""
        time.sleep(ms / 1000)

    def waits(self) -> int:
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
