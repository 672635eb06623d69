"""The zk package against a real ZooKeeper: the contract, and what a server's process can do."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import SessionExpiredError
from zookeeper_server import (
    CONNECTION_TIMEOUT_MS,
    PATIENT_SESSION_TIMEOUT_MS,
    PATIENT_TICK_MS,
    TICK_MS,
    ZooKeeperHost,
    free_port,
    real_world,
    zookeeper_host,
)

from kdist.cli.standalone.zookeeper_server import ServerSettings, start_server
from kdist.config.addresses import ConnectString
from kdist.controller.writing import CHUNK, CHUNKS_IN_FLIGHT
from kdist.errors import UserError
from kdist.runtime.disk import Disk
from kdist.zk import znodes
from kdist.zk.client import Create, Delete, SessionState, Znode
from kdist.zk.election import (
    Leadership,
    claim,
    current_controller,
    fenced_multi,
    find_leadership,
)
from kdist.zk.errors import ConnectionLoss, Fenced, ZooKeeperError
from kdist.zk.kazoo_client import KazooZooKeeper
from kdist.zk.values import ControllerInfo
from kdist.zk.watching import DataWatcher
from tests.unit.zk.zk_contract import RequestContract, in_loop, in_state, until
from tests.unit.zk.zk_scripted_server import count_attempts
from tests.unit.zk.zk_session_contract import SessionContract


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperHost]:
    with zookeeper_host(tmp_path_factory.mktemp("zookeeper")) as host:
        yield host


class TestRealZooKeeper(RequestContract, SessionContract):
    """The same tests as for the one in memory."""

    @pytest.fixture
    def enter(self, host: ZooKeeperHost) -> Any:
        return partial(real_world, host.settings)


@pytest.fixture
def own_host(tmp_path: Path) -> Iterator[ZooKeeperHost]:
    """A server for one test alone, which may stop it."""
    with zookeeper_host(tmp_path) as host:
        yield host


@pytest.fixture
def patient_host(tmp_path: Path) -> Iterator[ZooKeeperHost]:
    """As `own_host`, with sessions that may last long."""
    with zookeeper_host(tmp_path, PATIENT_TICK_MS) as host:
        yield host


@in_loop
async def test_sessions_and_znodes_outlive_a_server_that_is_killed(
    patient_host: ZooKeeperHost,
) -> None:
    async with real_world(patient_host.settings) as world:
        # From the new start on it has this long to come back.
        zk = await world.client(session_timeout_ms=PATIENT_SESSION_TIMEOUT_MS)
        await zk.create("/e", b"kept", ephemeral=True)
        session_id = zk.session_id
        await patient_host.running.kill()
        await in_state(zk, SessionState.SUSPENDED)
        await patient_host.start()
        await in_state(zk, SessionState.CONNECTED)
        assert zk.session_id == session_id
        assert (await zk.get("/e")).data == b"kept"


@in_loop
async def test_a_server_that_stands_still_is_given_up_until_it_goes_on(
    own_host: ZooKeeperHost,
) -> None:
    async with real_world(own_host.settings) as world:
        zk = await world.client()
        await zk.create("/a")
        own_host.pause()
        with pytest.raises(ConnectionLoss):
            await zk.set("/a", b"outcome unknown")
        await in_state(zk, SessionState.SUSPENDED)
        own_host.go_on()
        await until(lambda: zk.state in (SessionState.CONNECTED, SessionState.EXPIRED))
        if zk.state is SessionState.EXPIRED:
            await zk.reconnect()
        assert (await zk.get("/a")).data in (b"", b"outcome unknown")


@in_loop
async def test_a_session_ends_when_the_loop_stands_still(host: ZooKeeperHost) -> None:
    address = host.settings.address
    zk = KazooZooKeeper(ConnectString.parse(address), 1_000, CONNECTION_TIMEOUT_MS)
    await zk.connect()
    await zk.create("/standing-still", ephemeral=True)
    watching, gone = KazooClient(address), threading.Event()
    await asyncio.to_thread(watching.start)
    assert watching.exists("/standing-still", watch=lambda _: gone.set()) is not None
    # The loop turns no more until then, though kazoo's thread could ping all the while.
    assert gone.wait(10)
    await in_state(zk, SessionState.EXPIRED)
    await zk.close()
    await asyncio.to_thread(watching.stop)


@in_loop
async def test_nothing_is_written_in_a_session_that_the_loop_does_not_know(
    host: ZooKeeperHost,
) -> None:
    zk = KazooZooKeeper(ConnectString.parse(host.settings.address), 1_000, CONNECTION_TIMEOUT_MS)
    await zk.connect()
    assert zk._session is not None
    attempts = count_attempts(zk._session)
    # The loop turns no more until kazoo has met the end, and has tried to go on after it.
    while not isinstance(attempts.get(timeout=30), SessionExpiredError):
        pass
    attempts.get(timeout=30)
    assert zk.state is SessionState.CONNECTED
    with pytest.raises(ZooKeeperError):
        await zk.create("/phantom")
    await in_state(zk, SessionState.EXPIRED)
    await zk.reconnect()
    assert await zk.exists("/phantom") is None
    await zk.close()


@in_loop
async def test_a_server_has_the_memory_for_the_transactions_that_it_keeps(
    patient_host: ZooKeeperHost,
) -> None:
    """It keeps the last 500, however large: as when topics of thousands of partitions come and go.

    128 MiB of heap were full after 450, and the server answered nobody any more.
    """
    async with real_world(patient_host.settings) as world:
        zk = await world.client(session_timeout_ms=PATIENT_SESSION_TIMEOUT_MS)
        path = f"/{'x' * 60}"
        largest = [Create(path, b"y" * 75), Delete(path)] * (CHUNK // 2)
        for _ in range(0, 600, CHUNKS_IN_FLIGHT):
            await asyncio.gather(*(zk.multi(largest) for _ in range(CHUNKS_IN_FLIGHT)))
        assert zk.state is SessionState.CONNECTED


@in_loop
async def test_close_does_not_wait_for_a_server_that_is_gone(own_host: ZooKeeperHost) -> None:
    async with real_world(own_host.settings) as world:
        zk = await world.client()
        await own_host.running.kill()
        async with asyncio.timeout(10):
            await zk.close()
        assert zk.state is SessionState.CLOSED


@in_loop
async def test_a_client_knows_that_the_servers_grant_less_than_it_asked_for(
    host: ZooKeeperHost,
) -> None:
    async with real_world(host.settings) as world:
        zk = await world.client(session_timeout_ms=60_000)
        async with asyncio.timeout(10):
            while zk.session_timeout_ms != 20 * TICK_MS:
                await asyncio.sleep(0.01)
        assert (await world.client(session_timeout_ms=500)).session_timeout_ms == 500


@in_loop
async def test_a_server_that_nobody_runs_is_named() -> None:
    address = f"127.0.0.1:{free_port()}"
    zk = KazooZooKeeper(ConnectString.parse(address), 1_000, connection_timeout_ms=500)
    with pytest.raises(ConnectionLoss, match=f"{address} answered within 500 ms"):
        await zk.connect()
    assert zk.state is SessionState.CLOSED


@in_loop
async def test_a_taken_port_is_named(host: ZooKeeperHost, tmp_path: Path) -> None:
    settings = host.settings._replace(directory=str(tmp_path))
    with pytest.raises(UserError, match=f"{settings.address}: the port is taken"):
        await start_server(settings, Disk(), os.environ)
    assert list(tmp_path.iterdir()) == []


@in_loop
async def test_a_port_that_is_taken_meanwhile_is_named(tmp_path: Path) -> None:
    settings = ServerSettings(str(tmp_path), free_port())
    server = await start_server(settings, Disk(), os.environ)
    with socket.socket() as other:
        other.bind((settings.host, settings.port))  # and no `listen`: nobody can connect to it
        with pytest.raises(UserError, match=f"{settings.address}: the port is taken"):
            await server.wait_until_ready()


@in_loop
async def test_a_server_that_cannot_run_says_where_its_log_is(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way of the directory")
    settings = ServerSettings(str(tmp_path), free_port())
    server = await start_server(settings, Disk(), os.environ)
    with pytest.raises(UserError, match=f"{tmp_path}/zookeeper.log says: .*data"):
        await server.wait_until_ready()


@in_loop
async def test_a_storm_of_watches_reaches_every_watcher(patient_host: ZooKeeperHost) -> None:
    async with real_world(patient_host.settings) as world:
        zk = await world.client(session_timeout_ms=PATIENT_SESSION_TIMEOUT_MS)
        other = await world.client(session_timeout_ms=PATIENT_SESSION_TIMEOUT_MS)
        await asyncio.gather(*(other.create(f"/n{n}") for n in range(200)))
        told: dict[str, bytes] = {}

        def tell(path: str, value: Znode | None) -> None:
            told[path] = value.data if value else b""

        watchers = [
            DataWatcher(zk, path, partial(tell, path)) for path in (f"/n{n}" for n in range(200))
        ]
        await until(lambda: len(told) == 200)
        for turn in range(5):
            data = b"%d" % turn
            await asyncio.gather(*(other.set(f"/n{n}", data) for n in range(200)))
            if turn == 2:
                await world.suspend(zk)
                await world.resume(zk)
        await until(lambda: set(told.values()) == {b"4"})
        for watcher in watchers:
            watcher.stop()


@in_loop
async def test_a_paused_controller_is_replaced_and_fenced(host: ZooKeeperHost) -> None:
    async with real_world(host.settings) as world:
        one, two = await world.client(), await world.client()
        old = await claim(one, 1, 0)
        assert old is not None
        seats: list[ControllerInfo | None] = []
        watcher = DataWatcher(
            two,
            "/controller",
            lambda z: seats.append(z and znodes.CONTROLLER.decode("/controller", z.data)),
        )
        await until(lambda: seats == [ControllerInfo(1, 0)])
        world.ways[one].hold()
        write = asyncio.ensure_future(
            fenced_multi(one, old.epoch_zk_version, [Create("/by-the-old")])
        )
        await until(lambda: seats[-1] is None)
        new = await claim(two, 2, 0)
        assert new == Leadership(old.epoch + 1, old.epoch_zk_version + 1)
        world.ways[one].mend()
        with pytest.raises(ConnectionLoss):
            await write
        await in_state(one, SessionState.EXPIRED)
        await one.reconnect()
        with pytest.raises(Fenced):
            await fenced_multi(one, old.epoch_zk_version, [Create("/by-the-old")])
        assert await one.exists("/by-the-old") is None
        assert await claim(one, 1, 0) is None
        await fenced_multi(two, new.epoch_zk_version, [Create("/by-the-new")])
        watcher.stop()


@in_loop
async def test_one_of_many_claims_at_once_wins(host: ZooKeeperHost) -> None:
    async with real_world(host.settings) as world:
        clients = [await world.client() for _ in range(5)]
        won = await asyncio.gather(*(claim(zk, n, 0) for n, zk in enumerate(clients)))
        assert [leadership for leadership in won if leadership] == [Leadership(1, 1)]
        winner = next(n for n, leadership in enumerate(won) if leadership)
        assert await find_leadership(clients[winner]) == Leadership(1, 1)
        controller = await current_controller(clients[0])
        assert controller == ControllerInfo(winner, 0)
