"""Three servers on a network: lagging followers, new leaders, sessions that move or run out."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

import pytest

from kdist.zk.client import Check, Create, SessionState, Set, WatchEvent, WatchKind
from kdist.zk.errors import ConnectionLoss, MultiFailed
from tests.unit.zk.zk_ensemble import SERVERS, EnsembleWorld, run_ensemble, until

pytestmark = pytest.mark.played(by=run_ensemble)

LAG_MS = 3_000.0

T = TypeVar("T")


def test_a_lagging_follower_answers_with_an_old_state_until_it_is_synced() -> None:
    async def scenario(world: EnsembleWorld) -> None:
        one, two = await world.client("zk1"), await world.client("zk2")
        await one.create("/a", b"old")
        await two.sync("/a")
        world.ensemble.lag("zk2", LAG_MS)
        await one.set("/a", b"new")
        assert (await two.get("/a")).data == b"old"
        await two.sync("/a")
        assert (await two.get("/a")).data == b"new"

    for seed in range(10):
        run_ensemble(scenario, seed)


async def test_a_client_reads_its_own_writes_from_a_lagging_follower(
    world: EnsembleWorld, /
) -> None:
    zk = await world.client("zk2")
    world.ensemble.lag("zk2", LAG_MS)
    await zk.create("/a")
    for n in range(5):
        stat, read = await asyncio.gather(zk.set("/a", b"%d" % n), zk.get("/a"))
        assert read == (b"%d" % n, stat)
    with pytest.raises(MultiFailed):
        await zk.multi([Set("/a", b"x"), Check("/a", 0)])
    assert (await zk.get("/a")).data == b"4"


async def test_several_changes_are_one_event_to_a_client_of_a_lagging_follower(
    world: EnsembleWorld, /
) -> None:
    one, two = await world.client("zk1"), await world.client("zk2")
    await one.create("/a", b"0")
    await two.sync("/a")
    world.ensemble.lag("zk2", LAG_MS)
    events: list[WatchEvent] = []
    await two.get("/a", events.append)
    for n in range(1, 6):
        await one.set("/a", b"%d" % n)
    await until(lambda: events)
    await two.sync("/a")
    assert events == [WatchEvent(WatchKind.CHANGED, "/a")]
    assert (await two.get("/a")).data == b"5"


def test_a_client_does_not_go_back_to_a_server_that_is_behind_it() -> None:
    async def scenario(world: EnsembleWorld) -> None:
        zk = await world.client("zk2", "zk3")
        await until(lambda: _moved(world, 0, "zk2"))
        world.ensemble.lag("zk3", LAG_MS)
        await zk.create("/a", b"seen")
        session_id = zk.session_id
        world.ensemble.crash("zk2")
        await until(lambda: zk.state is SessionState.SUSPENDED)
        assert (await zk.get("/a")).data == b"seen"
        assert (zk.session_id, world.ensemble.server_of(zk)) == (session_id, "zk3")

    for seed in range(10):
        run_ensemble(scenario, seed)


def _moved(world: EnsembleWorld, number: int, server: str) -> bool:
    """Whether a client is on the server; it is sent to look for another one if not."""
    zk = world.clients[number]
    where = world.ensemble.server_of(zk)
    if where is not None and where != server:
        world.ensemble.disconnect(zk)
    return where == server and zk.state is SessionState.CONNECTED


async def test_a_session_moves_to_another_server_with_its_ephemerals(
    world: EnsembleWorld, /
) -> None:
    zk, other = await world.client(), await world.client("zk1")
    await until(lambda: _moved(world, 0, "zk2"))
    await zk.create("/e", ephemeral=True)
    session_id = zk.session_id
    states: list[SessionState] = []
    zk.add_listener(states.append)
    world.network.partition(["zk2"], ["zk1", "zk3", "c0", "c1"])
    await until(lambda: len(states) == 2)
    assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
    assert world.ensemble.server_of(zk) in ("zk1", "zk3")
    assert zk.session_id == session_id
    await asyncio.sleep(30)
    assert await other.exists("/e") is not None


def test_what_a_session_asked_for_at_a_server_that_it_left_is_not_carried_out() -> None:
    async def scenario(world: EnsembleWorld) -> None:
        zk, other = await world.client(), await world.client("zk1")
        await until(lambda: _moved(world, 0, "zk2"))
        world.network.partition(["zk2", "c0"], ["zk1", "zk3", "c1"])
        write = asyncio.ensure_future(zk.create("/late"))
        await asyncio.sleep(0.1)  # zk2 has it, and cannot reach the leader
        world.ensemble.disconnect(zk)
        world.network.partition(["zk2"], ["zk1", "zk3", "c0", "c1"])
        with pytest.raises(ConnectionLoss):
            await write
        await until(lambda: zk.state is SessionState.CONNECTED)
        world.network.heal()
        await asyncio.sleep(5)
        await other.sync("/late")
        assert await other.exists("/late") is None

    for seed in range(10):
        run_ensemble(scenario, seed)


def test_a_write_comes_before_the_sync_of_a_later_connection_to_the_same_server() -> None:
    carried_out = set()

    async def scenario(world: EnsembleWorld) -> None:
        zk = await world.client("zk2")
        states: list[SessionState] = []
        zk.add_listener(states.append)
        write = asyncio.ensure_future(zk.create("/late"))
        await asyncio.sleep(world.rng.uniform(0, 0.012))
        world.ensemble.disconnect(zk)
        with suppress(ConnectionLoss):
            await write
        await until(lambda: len(states) == 2)
        await zk.sync("/late")
        found = await zk.exists("/late")
        await asyncio.sleep(10)
        assert await zk.exists("/late") == found
        carried_out.add(found is not None)

    for seed in range(20):
        run_ensemble(scenario, seed)
    assert carried_out == {True, False}


async def test_what_a_session_asked_for_is_carried_out_though_the_client_has_lost_its_server(
    world: EnsembleWorld, /
) -> None:
    zk, other = await world.client("zk2"), await world.client("zk1")
    world.network.partition(["zk2", "c0"], ["zk1", "zk3", "c1"])
    write = asyncio.ensure_future(zk.create("/late"))
    await asyncio.sleep(0.1)  # zk2 has it, and cannot reach the leader
    world.network.partition(["zk1", "zk2", "zk3", "c1"])
    with pytest.raises(ConnectionLoss):
        await write
    await until(lambda: world.ensemble.tree.exists("/late"))
    await other.sync("/late")
    assert await other.exists("/late") is not None


async def test_a_client_that_goes_silent_expires_and_its_ephemerals_linger_where_a_server_lags(
    world: EnsembleWorld, /
) -> None:
    silent, one, two = [await world.client(name) for name in ("zk3", "zk1", "zk2")]
    await silent.create("/e", ephemeral=True)
    await two.sync("/e")
    world.ensemble.lag("zk2", 60_000)
    gone: list[float] = []
    for zk in (one, two):
        await zk.exists("/e", lambda _: gone.append(world.loop.time()))
    began = world.loop.time()
    world.isolate(silent.host)
    await until(lambda: len(gone) == 1)
    assert 4 < gone[0] - began < 6.1  # its last ping was up to a third of the timeout ago
    assert await one.exists("/e") is None
    assert await two.exists("/e") is not None
    await until(lambda: len(gone) == 2, patience_s=120)
    assert silent.state is SessionState.SUSPENDED
    world.network.heal()
    await until(lambda: silent.state is SessionState.EXPIRED)


def test_a_new_leader_has_every_write_and_every_session() -> None:
    async def scenario(world: EnsembleWorld) -> None:
        clients = [await world.client() for _ in range(3)]
        sessions = [zk.session_id for zk in clients]
        for n, zk in enumerate(clients):
            await zk.create(f"/e{n}", ephemeral=True)
        for _ in range(3):
            leader = world.ensemble.leader
            assert leader is not None
            world.ensemble.crash(leader)
            await until(lambda leader=leader: world.ensemble.leader not in (None, leader))
            await until(lambda: all(zk.state is SessionState.CONNECTED for zk in clients))
            world.ensemble.restart(leader)
            await clients[0].sync("/")
            assert await clients[0].children("/") == ["e0", "e1", "e2"]
        assert [zk.session_id for zk in clients] == sessions

    for seed in range(5):
        run_ensemble(scenario, seed)


PROCESS: ContextVar[str] = ContextVar("process", default="none")


async def in_process(name: str, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` as a process of this name would."""
    context = copy_context()
    context.run(PROCESS.set, name)
    return await asyncio.get_running_loop().create_task(work, context=context)


async def test_a_watch_is_called_in_the_process_that_set_it_and_not_in_the_writers(
    world: EnsembleWorld, /
) -> None:
    one = await in_process("one", world.client("zk2"))
    two = await in_process("two", world.client("zk3"))
    called_in: list[str] = []
    two.add_listener(lambda _: called_in.append(PROCESS.get()))
    await in_process("two", two.exists("/a", lambda _: called_in.append(PROCESS.get())))
    await in_process("one", one.create("/a"))
    await until(lambda: called_in)
    world.ensemble.disconnect(two)
    await until(lambda: len(called_in) == 3)
    assert called_in == ["two", "two", "two"]


async def test_without_a_majority_nothing_is_written_and_no_session_expires(
    world: EnsembleWorld, /
) -> None:
    zk, reader = await world.client("zk1"), await world.client("zk1")
    await zk.create("/e", ephemeral=True)
    session_id = zk.session_id
    for name in world.followers:
        world.ensemble.crash(name)
    write = asyncio.ensure_future(zk.create("/a"))
    await asyncio.sleep(0.5)
    assert not write.done()
    assert await reader.exists("/e") is not None
    with pytest.raises(ConnectionLoss):
        await write
    await asyncio.sleep(600)
    assert zk.state is SessionState.SUSPENDED
    world.ensemble.restart("zk2")
    await until(lambda: zk.state is SessionState.CONNECTED)
    assert zk.session_id == session_id
    assert await zk.children("/") == ["e"]


def test_a_leader_without_followers_serves_an_old_state_until_it_notices() -> None:
    stale = set()

    async def scenario(world: EnsembleWorld) -> None:
        zk = await world.client("zk1")
        assert world.ensemble.leader == "zk1"
        world.network.partition(["zk1", "c0"], ["zk2", "zk3", "c1"])
        other = world.ensemble.client(
            host="c1", servers=("zk2", "zk3"), connection_timeout_ms=60_000
        )
        await other.connect()
        await other.create("/a")
        if zk.state is SessionState.CONNECTED:
            stale.add(await zk.exists("/a"))
        await until(lambda: zk.state is SessionState.SUSPENDED)
        world.network.heal()
        await until(lambda: zk.state is not SessionState.SUSPENDED)

    for seed in range(30):
        run_ensemble(scenario, seed)
    assert stale == {None}


def test_a_lost_answer_is_one_of_a_write_that_was_carried_out() -> None:
    async def scenario(world: EnsembleWorld) -> None:
        zk = await world.client()
        world.ensemble.lost_answers = 1.0
        with pytest.raises(ConnectionLoss):
            await zk.multi([Create("/a"), Create("/a/b")])
        world.ensemble.lost_answers = 0.0
        await until(lambda: zk.state is SessionState.CONNECTED)
        assert await zk.children("/a") == ["b"]

    for seed in range(10):
        run_ensemble(scenario, seed)


def test_a_seed_gives_the_same_history_of_three_servers_again() -> None:
    def transcript(seed: int) -> list[object]:
        seen: list[object] = []

        async def scenario(world: EnsembleWorld) -> None:
            zk, other = await world.client(), await world.client()
            zk.add_listener(lambda state: seen.append((world.loop.time(), state)))
            await zk.create("/p")
            world.ensemble.lost_answers = 0.3
            for _n in range(10):
                world.ensemble.lag(world.rng.choice(SERVERS), world.rng.uniform(0, 100))
                for client in (zk, other):
                    try:
                        seen.append(await client.create("/p/n", sequential=True))
                    except ConnectionLoss:
                        seen.append(world.loop.time())
                seen.append(world.ensemble.server_of(zk))

        run_ensemble(scenario, seed)
        return seen

    assert transcript(1) == transcript(1)
    assert transcript(1) != transcript(2)
