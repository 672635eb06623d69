"""The ensemble in memory: it keeps the contract of a client, and has faults, delays, a seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from kdist.runtime.clock import SystemClock
from kdist.testing.memory_zookeeper import MemoryEnsemble, MemoryZooKeeper
from kdist.zk.client import SessionState, WatchEvent, WatchKind, ZooKeeper
from kdist.zk.errors import ConnectionLoss, NoNode, Unimplemented
from kdist.zk.session import Answer, GetMany, Request
from tests.unit.zk.zk_contract import RequestContract, in_state, password_of
from tests.unit.zk.zk_ensemble import connected, run
from tests.unit.zk.zk_session_contract import SessionContract

pytestmark = pytest.mark.played(by=run)

SESSION_TIMEOUT_MS = 300


class MemoryWorld:
    """One ensemble, by a seed."""

    def __init__(self, seed: int, delay_ms_max: float, servers: Sequence[str]) -> None:
        self.ensemble = MemoryEnsemble(
            SystemClock(), random.Random(seed), delay_ms_max, servers=servers
        )
        self.servers = servers[-1:]  # one that follows, if there are several
        self.clients: list[ZooKeeper] = []

    async def client(self, chroot: str = "", user: str = "") -> ZooKeeper:
        client = self.ensemble.client(
            chroot,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            servers=self.servers,
            digest=password_of(user) if user else None,
            sets_acls=bool(user),
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


async def test_no_session_runs_out_while_the_servers_are_down(ensemble: MemoryEnsemble, /) -> None:
    zk = await connected(ensemble)
    await zk.create("/e", ephemeral=True)
    session_id = zk.session_id
    ensemble.stop()
    await asyncio.sleep(600)
    assert zk.state is SessionState.SUSPENDED
    ensemble.start()
    await asyncio.sleep(1)
    assert (zk.state, zk.session_id) == (SessionState.CONNECTED, session_id)
    assert await zk.exists("/e") is not None


async def test_nobody_connects_to_servers_that_are_down(ensemble: MemoryEnsemble, /) -> None:
    ensemble.stop()
    zk = ensemble.client(connection_timeout_ms=1_000)
    with pytest.raises(ConnectionLoss, match="answered within 1000 ms"):
        await zk.connect()
    assert zk.state is SessionState.CLOSED
    ensemble.start()
    await zk.connect()
    assert zk.state is SessionState.CONNECTED


async def test_a_connect_while_the_servers_are_down_succeeds_when_they_are_back(
    ensemble: MemoryEnsemble, /
) -> None:
    ensemble.stop()
    zk = ensemble.client()
    connecting = asyncio.ensure_future(zk.connect())
    await asyncio.sleep(1)
    ensemble.start()
    await connecting
    assert zk.state is SessionState.CONNECTED


async def test_a_server_that_cannot_read_many_at_once_is_asked_for_one_after_the_other(
    ensemble: MemoryEnsemble, /
) -> None:
    zk = await connected(ensemble)
    carry = zk._send

    def send(request: Request, answer: Answer) -> None:
        if isinstance(request, GetMany):
            answer.set_exception(Unimplemented(request.path))
        else:
            carry(request, answer)

    zk._send = send  # type: ignore[method-assign]
    await zk.create("/a", b"x")
    assert await zk.get_many(["/a", "/b"]) == [await zk.get("/a"), None]


def test_a_lost_answer_leaves_both_outcomes_possible() -> None:
    carried_out = set()
    for seed in range(40):

        async def scenario(ensemble: MemoryEnsemble) -> None:
            zk = await connected(ensemble)
            request = asyncio.ensure_future(zk.create("/a"))
            await asyncio.sleep(0.004)
            ensemble.suspend(zk)
            try:
                await request
            except ConnectionLoss:
                carried_out.add(ensemble.tree.exists("/a") is not None)

        run(scenario, seed)
    assert carried_out == {True, False}


def order_of_answers(seed: int) -> list[str]:
    """Two clients create three znodes each, all at once; whose answer comes when."""
    answered: list[str] = []

    async def create(zk: MemoryZooKeeper, name: str) -> None:
        await zk.create(f"/{name}")
        answered.append(name)

    async def scenario(ensemble: MemoryEnsemble) -> None:
        clients = {"a": await connected(ensemble), "b": await connected(ensemble)}
        await asyncio.gather(
            *(create(zk, f"{client}{n}") for client, zk in clients.items() for n in range(3))
        )

    run(scenario, seed)
    return answered


def test_clients_overtake_each_other_and_each_keeps_its_own_order() -> None:
    orders = [order_of_answers(seed) for seed in range(20)]
    for order in orders:
        assert [name for name in order if name[0] == "a"] == ["a0", "a1", "a2"]
        assert [name for name in order if name[0] == "b"] == ["b0", "b1", "b2"]
    assert {order[0] for order in orders} == {"a0", "b0"}


def test_a_seed_gives_the_same_run_again() -> None:
    def transcript(seed: int) -> list[object]:
        seen: list[object] = []

        async def scenario(ensemble: MemoryEnsemble) -> None:
            zk, other = await connected(ensemble), await connected(ensemble)
            await zk.create("/p")
            loop = asyncio.get_running_loop()
            for n in range(5):
                await zk.children("/p", seen.append)
                await asyncio.gather(other.create(f"/p/{n}"), zk.set("/p", b"x"))
                seen.append(loop.time())
            ensemble.expire(zk)
            await asyncio.sleep(1)
            seen.append(zk.state)

        run(scenario, seed)
        return seen

    assert transcript(1) == transcript(1)
    assert transcript(1) != transcript(2)


async def test_a_paused_client_finds_its_session_gone(ensemble: MemoryEnsemble, /) -> None:
    zk, other = await connected(ensemble), await connected(ensemble)
    await zk.create("/e", ephemeral=True)
    gone: list[WatchEvent] = []
    await other.exists("/e", gone.append)
    ensemble.suspend(zk, noticed_after_ms=10_000)
    ensemble.resume(zk)
    await asyncio.sleep(7)
    assert zk.state is SessionState.CONNECTED
    assert gone == [WatchEvent(WatchKind.DELETED, "/e")]
    await asyncio.sleep(4)
    assert zk.state is SessionState.EXPIRED


async def test_a_chroot_is_made_though_the_connection_is_lost_meanwhile(
    ensemble: MemoryEnsemble, /
) -> None:
    zk = ensemble.client("/a/b")
    connecting = asyncio.ensure_future(zk.connect())
    while zk.state is not SessionState.CONNECTED:
        await asyncio.sleep(0.001)
    ensemble.suspend(zk)
    await asyncio.sleep(1)
    ensemble.resume(zk)
    await connecting
    assert ensemble.tree.exists("/a/b") is not None


async def test_a_client_that_closes_while_cut_off_leaves_its_session_to_expire(
    ensemble: MemoryEnsemble, /
) -> None:
    zk, other = await connected(ensemble), await connected(ensemble)
    await zk.create("/e", ephemeral=True)
    ensemble.suspend(zk)
    await asyncio.sleep(0.1)
    await zk.close()
    assert await other.exists("/e") is not None
    await asyncio.sleep(7)
    assert await other.exists("/e") is None
    ensemble.resume(zk)
    await zk.connect()
    with pytest.raises(NoNode):
        await zk.get("/e")


class TestMemoryZooKeeper(RequestContract, SessionContract):
    """Messages that arrive at once, and messages that take up to 2 ms."""

    @pytest.fixture(params=[(0.0, 1), (2.0, 1), (0.0, 3), (2.0, 3)])
    def enter(self, request: pytest.FixtureRequest) -> Any:
        delay_ms_max, count = request.param
        servers = [f"zk{number}" for number in range(count)]
        return partial(memory_world, delay_ms_max=delay_ms_max, servers=servers)
