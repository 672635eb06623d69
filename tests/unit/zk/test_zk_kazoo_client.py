"""kazoo beside the loop: state changes, pings, log lines, and the bytes of its requests."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    NoAuthError,
    NodeExistsError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.protocol.serialization import Transaction
from kazoo.protocol.states import ZnodeStat

from kdist.config.addresses import ConnectString
from kdist.runtime.diagnostics import LogLevels
from kdist.zk import kazoo_client
from kdist.zk.client import Check, Create, Delete, SessionKey, SessionState, Set
from kdist.zk.errors import ConnectionLoss, NoSuchServer, Untrusted, ZooKeeperError
from kdist.zk.kazoo_client import KazooSession, KazooZooKeeper, OncePerMinute
from kdist.zk.kazoo_handler import InlineHandler
from kdist.zk.kazoo_requests import MultiRead, MultiWrite
from kdist.zk.security import ZooKeeperSecurity
from tests.certificates import client_context, server_context
from tests.unit.zk.zk_scripted_server import ScriptedServer, count_attempts, scripted_server

DELETE, AUTH = 2, 100  # types of requests
REFUSED = "Connection dropped: socket connection error: Connection refused"

Heard = Callable[["HastySession", SessionState, int], None]


class HastySession:
    """In place of a `KazooSession`: connected, lost again before anybody looks, then connected."""

    def __init__(
        self, _connect: object, _session_timeout_ms: int, heard: Heard, **_: object
    ) -> None:
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


END = b"\xff\xff\xff\xff" + b"\1" + b"\xff\xff\xff\xff"
STAT = (1, 2, 3, 4, 5, 6, 7, 0, 2, 0, 1)


def answered(kind: int, error: int, body: bytes) -> bytes:
    return struct.pack("!ibi", kind, 0, error) + body


def refused(code: int) -> bytes:
    return answered(-1, code, struct.pack("!i", code))


def read(data: bytes | None) -> bytes:
    size = -1 if data is None else len(data)
    return answered(
        4, 0, struct.pack("!i", size) + (data or b"") + struct.pack("!qqqqiiiqiiq", *STAT)
    )


async def test_a_session_that_is_lost_as_it_opens_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kazoo_client, "KazooSession", HastySession)
    zk = KazooZooKeeper(ConnectString.parse("there:2181"), 6_000, 6_000)
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


def pinged(session: KazooSession, sent: list[float]) -> threading.Thread:
    """kazoo's thread, to which a ping is due."""
    session._ping = sent.append
    ping = session.client._connection._send_ping
    thread = threading.Thread(target=ping, args=(2.0,), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("reason", "found", "waits_s"),
    [
        (socket.EAI_NONAME, NoSuchServer, 0.0),
        (socket.EAI_NODATA, NoSuchServer, 0.0),
        (socket.EAI_AGAIN, ConnectionLoss, 0.5),
    ],
)
def test_only_names_that_do_not_exist_are_told_before_the_time_to_connect_is_over(
    reason: int, found: type[Exception], waits_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resolver that does not answer yet is waited for: it may start after this process."""

    def resolve(*_: object) -> None:
        raise socket.gaierror(reason, "no address")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    zk = KazooZooKeeper(ConnectString.parse("zk8:2181,zk9:2181"), 6_000, 500)

    async def scenario() -> None:
        began_s = time.monotonic()
        with pytest.raises(ConnectionLoss) as raised:
            await zk.connect()
        assert raised.type is found
        assert waits_s <= time.monotonic() - began_s
        assert zk.state is SessionState.CLOSED

    asyncio.run(scenario())


async def test_a_ping_waits_for_a_busy_loop() -> None:
    sent: list[float] = []
    session = KazooSession(ConnectString.parse("there:2181"), 60_000, lambda *_: None)
    thread = pinged(session, sent)
    thread.join(0.1)  # the loop turns no more until then
    assert (thread.is_alive(), sent) == (True, [])
    await asyncio.to_thread(thread.join, 30)
    assert sent == [2.0]


async def test_a_loop_that_stands_still_for_a_session_has_no_ping_sent() -> None:
    sent: list[float] = []
    session = KazooSession(ConnectString.parse("there:2181"), 50, lambda *_: None)
    thread = pinged(session, sent)
    thread.join(30)
    assert (thread.is_alive(), sent) == (False, [])


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


async def test_a_silent_server_is_left_for_the_next_long_before_the_session_is_over(
    silent: tuple[str, int],
) -> None:
    three = ConnectString.parse(f"{silent[0]}:{silent[1]},there:2181,elsewhere:2181")
    session = KazooSession(three, 1_200, lambda *_: None)
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        session.client.handler.create_connection(address=silent, timeout=60.0)
    assert time.monotonic() - begin < 30


async def test_a_server_that_accepts_and_says_nothing_is_left_as_early() -> None:
    session = KazooSession(ConnectString.parse("there:2181"), 60_000, lambda *_: None)
    waited_s: list[float] = []
    session._invoke = lambda timeout_s, *_, **__: waited_s.append(timeout_s)
    session.client._connection._invoke(60.0, object())
    session.client._connection._invoke(5.0, object(), xid=-4)
    assert waited_s == [30.0, 5.0]


async def test_nothing_is_asked_for_in_a_session_that_the_loop_does_not_know() -> None:
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


def digest_client(server: ScriptedServer) -> KazooZooKeeper:
    connect = ConnectString.parse(f"127.0.0.1:{server.port}")
    return KazooZooKeeper(connect, 60_000, 30_000, ZooKeeperSecurity(digest="ann:word"))


async def test_credentials_that_are_not_taken_are_told_at_once() -> None:
    with scripted_server(takes_credentials=False) as server:
        zk = digest_client(server)
        states: list[SessionState] = []
        zk.add_listener(states.append)
        for _ in range(2):
            with pytest.raises(Untrusted, match="does not take the credentials"):
                await zk.connect()
            assert zk.state is SessionState.CLOSED
        assert SessionState.CONNECTED not in states


async def test_nothing_is_asked_for_before_the_credentials_are_taken() -> None:
    with scripted_server() as server:
        zk = digest_client(server)
        await zk.connect()
        assert server.asked == [AUTH]
        await zk.delete("/a")
        await zk.close()
        assert server.asked == [AUTH, DELETE]


def test_an_answer_that_tls_has_decrypted_already_is_read_at_once() -> None:
    context = server_context()
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as thread:

        def serve() -> ssl.SSLSocket:
            served = context.wrap_socket(listening.accept()[0], server_side=True)
            served.sendall(b"onetwo")  # in one record
            return served

        serving = thread.submit(serve)
        handler = InlineHandler(30, client_context)
        connected = handler.create_connection(listening.getsockname(), "localhost")
        with connected, serving.result():
            assert connected.recv(3) == b"one"
            found = handler.select([connected], [], [], 30)[0]
            assert found == [connected]
            assert connected.recv(3) == b"two"


# --- kazoo's log lines: each at once, and once a minute at most -----------------------------------


def is_logged(lines: OncePerMinute, at_s: float, text: str = REFUSED) -> bool:
    record = logging.LogRecord("kazoo.client", logging.WARNING, "", 0, "%s", (text,), None)
    record.created = at_s
    return bool(lines.filter(record))


def test_a_line_is_logged_once_a_minute() -> None:
    lines = OncePerMinute()
    assert [at_s for at_s in range(1000, 1180) if is_logged(lines, at_s)] == [1000, 1060, 1120]


def test_a_different_line_is_logged_at_once() -> None:
    lines = OncePerMinute()
    assert is_logged(lines, 1000)
    assert is_logged(lines, 1001, "Zookeeper connection established, state: CONNECTED")
    assert not is_logged(lines, 1002)


def test_a_clock_that_was_set_back_silences_nothing() -> None:
    lines = OncePerMinute()
    assert is_logged(lines, 1000)
    assert is_logged(lines, 10)
    assert not is_logged(lines, 11)


@pytest.fixture
def debugging() -> Iterator[None]:
    LogLevels().set("kazoo", "TRACE")
    yield
    LogLevels().unset("kazoo")


@pytest.mark.usefixtures("debugging")
async def test_what_is_stored_is_not_logged_at_any_level(caplog: pytest.LogCaptureFixture) -> None:
    session = KazooSession(ConnectString.parse("there:2181"), 60_000, lambda *_: None)
    client = session.client
    client.logger.debug("Sending request(xid=%s): %s", 1, b"stored_key=c2VjcmV0")
    client._connection.logger.debug("Received response(xid=%s): %r", 1, b"stored_key=c2VjcmV0")
    client.logger.warning("Connection dropped")
    assert caplog.messages == ["Connection dropped"]


def test_few_of_many_lines_are_remembered() -> None:
    lines = OncePerMinute()
    for number in range(1000):
        assert is_logged(lines, 1000, f"Connecting to host-{number}")
    assert len(lines._logged_s) <= 100


def test_the_real_clients_lines_are_limited() -> None:
    assert KazooZooKeeper.__module__ == "kdist.zk.kazoo_client"  # which sees to it
    filters = logging.getLogger("kazoo.client").filters
    assert [type(each) for each in filters] == [OncePerMinute]


def test_each_read_of_the_request_has_its_path_and_no_watch() -> None:
    begin = b"\0\0\0\4" + b"\0" + b"\xff\xff\xff\xff"
    assert MultiRead(["/a", "/é"]).serialize() == (
        begin + b"\0\0\0\2/a\0" + begin + b"\0\0\0\3/\xc3\xa9\0" + END
    )


def test_existing_missing_and_refused_znodes_are_distinguished() -> None:
    answer = b"head" + read(b"xyz") + refused(-101) + read(None) + refused(-102) + read(b"") + END
    first, missing, empty, secret, last = MultiRead.deserialize(answer, 4)
    assert (first[0], tuple(first[1])) == (b"xyz", STAT)
    assert missing is None
    assert empty[0] == last[0] == b""
    assert isinstance(secret, NoAuthError)


def test_a_transaction_has_the_bytes_that_kazoo_gives_it() -> None:
    theirs = KazooClient().transaction()
    theirs.check("/a", 3)
    theirs.create("/a/b", b"x")
    theirs.create("/e", ephemeral=True)
    theirs.create("/s_", b"", sequence=True)
    theirs.create("/es_", b"", ephemeral=True, sequence=True)
    theirs.set_data("/a", b"y", 4)
    theirs.delete("/c", -1)
    theirs.set_data("/é", "ü".encode())
    theirs.delete("/é", 7)
    ours = MultiWrite(
        [
            Check("/a", 3),
            Create("/a/b", b"x"),
            Create("/e", ephemeral=True),
            Create("/s_", sequential=True),
            Create("/es_", ephemeral=True, sequential=True),
            Set("/a", b"y", 4),
            Delete("/c"),
            Set("/é", "ü".encode()),
            Delete("/é", 7),
        ]
    )
    assert ours.serialize() == Transaction(theirs.operations).serialize()
    assert ours.type == Transaction.type


def test_a_transactions_results_are_read_as_kazoo_reads_them() -> None:
    path = "/é".encode()
    done = (
        b"head"
        + answered(13, 0, b"")
        + answered(1, 0, struct.pack("!i", len(path)) + path)
        + answered(5, 0, struct.pack("!qqqqiiiqiiq", *STAT))
        + answered(2, 0, b"")
        + END
    )
    assert MultiWrite.deserialize(done, 4) == Transaction.deserialize(done, 4)
    assert MultiWrite.deserialize(done, 4) == [True, "/é", ZnodeStat(*STAT), True]
    not_done = b"head" + refused(0) + refused(-110) + refused(-2) + END
    assert [type(each) for each in MultiWrite.deserialize(not_done, 4)] == [
        RolledBackError,
        NodeExistsError,
        RuntimeInconsistency,
    ]
