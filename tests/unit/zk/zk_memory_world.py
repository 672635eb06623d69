"""The contract's world in memory: an ensemble whose messages take up to a few milliseconds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from kdist.runtime.clock import SystemClock
from kdist.zk.client import SessionState, ZooKeeper
from kdist.zk.memory import MemoryEnsemble, MemoryZooKeeper
from tests.unit.zk.zk_contract import in_state

SESSION_TIMEOUT_MS = 300


class MemoryWorld:
    """One ensemble, by a seed."""

    def __init__(self, seed: int, delay_ms_max: float, servers: Sequence[str]) -> None:
        self.ensemble = MemoryEnsemble(
            SystemClock(), random.Random(seed), delay_ms_max, servers=servers
        )
        self.servers = servers[-1:]  # one that follows, if there are several
        self.clients: list[ZooKeeper] = []

    async def client(self, chroot: str = "") -> ZooKeeper:
        client = self.ensemble.client(
            chroot, session_timeout_ms=SESSION_TIMEOUT_MS, servers=self.servers
        )
        await client.connect()
        self.clients.append(client)
        return client

    async def suspend(self, client: ZooKeeper) -> None:
        assert isinstance(client, MemoryZooKeeper)
        self.ensemble.suspend(client)
        await in_state(client, SessionState.SUSPENDED)

    async def resume(self, client: ZooKeeper) -> None:
        assert isinstance(client, MemoryZooKeeper)
        self.ensemble.lost_answers = 0.0
        self.ensemble.resume(client)

    async def lose_answers(self, client: ZooKeeper) -> None:
        self.ensemble.lost_answers = 1.0

    async def expire(self, client: ZooKeeper) -> None:
        assert isinstance(client, MemoryZooKeeper)
        self.ensemble.expire(client)


@asynccontextmanager
async def memory_world(
    seed: int = 0, delay_ms_max: float = 2.0, servers: Sequence[str] = ("memory",)
) -> AsyncIterator[MemoryWorld]:
    """A world, and the end of its clients."""
    world = MemoryWorld(seed, delay_ms_max, servers)
    yield world
    await asyncio.gather(*(client.close() for client in world.clients))
