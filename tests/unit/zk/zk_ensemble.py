"""Runs a scenario in virtual time, by a seed: with an ensemble in memory, of one server or three.

The three are on a simulated network.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from kdist.testing.memory_zookeeper import MemoryEnsemble, MemoryZooKeeper
from kdist.testing.simulated_network import SimulatedNetwork
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop

SERVERS = ("zk1", "zk2", "zk3")
DELAY_MS_MAX = 5.0


class EnsembleWorld:
    """The ensemble, its network, and its clients: the n-th is on host `c<n>`."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        clock = VirtualClock()
        self.loop = VirtualLoop(clock)
        self.network = SimulatedNetwork(self.loop, self.rng)
        self.ensemble = MemoryEnsemble(
            clock,
            self.rng,
            DELAY_MS_MAX,
            servers=SERVERS,
            is_cut=self.network.is_cut,
            loop=self.loop,
        )
        self.clients: list[MemoryZooKeeper] = []

    async def client(self, *servers: str) -> MemoryZooKeeper:
        """A client with a session, that knows all servers or the given ones."""
        zk = self.ensemble.client(host=f"c{len(self.clients)}", servers=servers)
        self.clients.append(zk)
        await zk.connect()
        return zk

    def isolate(self, *hosts: str) -> None:
        """Cut each of these hosts off from all others."""
        everybody = [*SERVERS, *(zk.host for zk in self.clients)]
        self.network.partition([host for host in everybody if host not in hosts])

    @property
    def followers(self) -> list[str]:
        return [name for name in SERVERS if name != self.ensemble.leader]


async def until(condition: Callable[[], object], patience_s: float = 60.0) -> None:
    """Let time pass until the condition holds."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + patience_s
    while not condition():
        assert loop.time() < end_s, "it did not happen in time"
        await asyncio.sleep(0.01)


def run_ensemble(scenario: Callable[[EnsembleWorld], Awaitable[None]], seed: int = 0) -> None:
    """A loop, a network and an ensemble of its own; whatever a callback raises ends the run."""
    world = EnsembleWorld(seed)

    async def started() -> None:
        await scenario(world)

    try:
        world.loop.run_until_complete(started())
    finally:
        world.loop.close()


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
