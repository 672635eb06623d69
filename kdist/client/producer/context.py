"""The outside world as a producer sees it: a network with its event loop, a clock, randomness."""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

from kdist.network.network import AsyncioNetwork, Network
from kdist.runtime.clock import Clock, SystemClock
from kdist.runtime.process import system_rng


class ProducerContext(NamedTuple):
    """The real machine's (`ProducerContext.of`), or a simulator's."""

    network: Network
    clock: Clock
    rng: random.Random

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> ProducerContext:
        """The real machine's, on this event loop."""
        return cls(AsyncioNetwork(loop), SystemClock(), system_rng())
