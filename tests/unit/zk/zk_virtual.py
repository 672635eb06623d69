"""Runs a scenario with an ensemble in memory, in virtual time, by a seed."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from kdist.runtime.clock import VirtualClock
from kdist.runtime.virtual_loop import VirtualLoop
from kdist.zk.memory import MemoryEnsemble, MemoryZooKeeper

DELAY_MS_MAX = 5.0

Scenario = Callable[[MemoryEnsemble], Awaitable[None]]


def run(scenario: Scenario, seed: int = 0, delay_ms_max: float = DELAY_MS_MAX) -> None:
    """A loop and an ensemble of its own; whatever a callback raises ends the run."""
    clock = VirtualClock()
    ensemble = MemoryEnsemble(clock, random.Random(seed), delay_ms_max)
    loop = VirtualLoop(clock)

    async def started() -> None:
        await scenario(ensemble)

    try:
        loop.run_until_complete(started())
    finally:
        loop.close()


async def connected(ensemble: MemoryEnsemble, chroot: str = "") -> MemoryZooKeeper:
    """A client with a session."""
    client = ensemble.client(chroot)
    await client.connect()
    return client
