"""A process for tests without asyncio: it has a loop of its own, which the test runs in steps."""

from __future__ import annotations

import random

from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from kdist.testing.virtual_process import VirtualProcess


class SteppedProcess(VirtualProcess):
    """Time passes only while one of its `run_` methods runs; what a callback raises, they raise."""

    def __init__(
        self,
        clock: VirtualClock | None = None,
        rng: random.Random | None = None,
        blocking_ms_max: float = 10.0,
    ) -> None:
        loop = VirtualLoop(clock or VirtualClock())
        super().__init__(loop, rng or random.Random(0), blocking_ms_max)
        self.run_for_ms = loop.run_for_ms
        self.run_until = loop.run_until

    def run_until_idle(self) -> None:
        """Run until nothing is left; never returns if a callback keeps rescheduling itself."""
        self.loop.run_until(lambda: False)
