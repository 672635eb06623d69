"""What kazoo's thread does beside the loop: state changes in quick succession, pings."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from kazoo.exceptions import SessionExpiredError

from kdist.config.connect_string import ConnectString
from kdist.zk import kazoo_client
from kdist.zk.client import SessionKey, SessionState
from kdist.zk.errors import ZooKeeperError
from kdist.zk.kazoo_client import KazooSession, KazooZooKeeper
from tests.unit.zk.zk_scripted_server import count_attempts, scripted_server

DELETE = 2  # the type of the request

Heard = Callable[["HastySession", SessionState, int], None]


class HastySession:
    """In place of a `KazooSession`: connected, lost again before anybody looks, then connected."""

    def __init__(self, _connect: object, _session_timeout_ms: int, heard: Heard) -> None:
        self.heard = heard
        self.is_ended = False

    def start(self) -> None:
        self.tell(SessionState.CONNECTED)
        self.tell(SessionState.SUSPENDED)

    def tell(self, state: SessionState) -> None:
        asyncio.get_running_loop().call_soon(self.heard, self, state, SessionKey(7, b"7"))

    def end(self) -> asyncio.Future[None]:
        self.is_ended = True
        ended = asyncio.get_running_loop().create_future()
        ended.set_result(None)
        return ended


def test_a_session_that_is_lost_as_it_opens_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kazoo_client, "KazooSession", HastySession)
    zk = KazooZooKeeper(ConnectString.parse("there:2181"), 6_000, 6_000)

    async def scenario() -> None:
        await zk.connect()
        assert zk.state is SessionState.SUSPENDED
        session = zk._session
        assert isinstance(session, HastySession)  # else nobody would connect again
        assert not session.is_ended
        session.tell(SessionState.CONNECTED)
        await asyncio.sleep(0)
        assert zk.state is SessionState.CONNECTED
        await zk.close()
        assert session.is_ended

    asyncio.run(scenario())


def pinged(session: KazooSession, sent: list[float]) -> threading.Thread:
    """kazoo's thread, to which a ping is due."""
    session._ping = sent.append
    ping = session.client._connection._send_ping
    thread = threading.Thread(target=ping, args=(2.0,), daemon=True)
    thread.start()
    return thread


def test_a_ping_waits_for_a_busy_loop() -> None:
    async def scenario() -> None:
        sent: list[float] = []
        session = KazooSession(ConnectString.parse("there:2181"), 60_000, lambda *_: None)
        thread = pinged(session, sent)
        thread.join(0.1)  # the loop turns no more until then
        assert (thread.is_alive(), sent) == (True, [])
        await asyncio.to_thread(thread.join, 30)
        assert sent == [2.0]

    asyncio.run(scenario())


def test_a_loop_that_stands_still_for_a_session_has_no_ping_sent() -> None:
    async def scenario() -> None:
        sent: list[float] = []
        session = KazooSession(ConnectString.parse("there:2181"), 50, lambda *_: None)
        thread = pinged(session, sent)
        thread.join(30)
        assert (thread.is_alive(), sent) == (False, [])

    asyncio.run(scenario())


def test_a_ping_of_a_session_whose_loop_is_closed_ends() -> None:
    async def scenario() -> KazooSession:
        return KazooSession(ConnectString.parse("there:2181"), 50, lambda *_: None)

    sent: list[float] = []
    thread = pinged(asyncio.run(scenario()), sent)
    thread.join(30)
    assert (thread.is_alive(), sent) == (False, [])


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """The address of a server that answers no connection, as of a host that has lost its power."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        with ExitStack() as waiting:
            while True:  # until there is no place left for one more
                try:
                    waiting.enter_context(socket.create_connection(address, timeout=0.2))
                except TimeoutError:
                    break
            yield address


def test_a_silent_server_is_left_for_the_next_long_before_the_session_is_over(
    silent: tuple[str, int],
) -> None:
    async def scenario() -> None:
        three = ConnectString.parse(f"{silent[0]}:{silent[1]},there:2181,elsewhere:2181")
        session = KazooSession(three, 1_200, lambda *_: None)
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            session.client.handler.create_connection(address=silent, timeout=60.0)
        assert time.monotonic() - begin < 30

    asyncio.run(scenario())


def test_nothing_is_asked_for_in_a_session_that_the_loop_does_not_know() -> None:
    async def scenario() -> None:
        with scripted_server() as server:
            zk = KazooZooKeeper(ConnectString.parse(f"127.0.0.1:{server.port}"), 60_000, 30_000)
            await zk.connect()
            assert zk._session is not None
            attempts = count_attempts(zk._session)
            server.drop()
            # The loop turns no more until kazoo has met the end, and has tried to go on after it.
            assert isinstance(attempts.get(timeout=30), SessionExpiredError)
            attempts.get(timeout=30)
            assert zk.state is SessionState.CONNECTED
            with pytest.raises(ZooKeeperError):
                await zk.create("/phantom")
            assert zk.state is SessionState.EXPIRED
            await zk.reconnect()
            await zk.delete("/known")
            await zk.close()
            assert server.asked == [DELETE]

    asyncio.run(scenario())
