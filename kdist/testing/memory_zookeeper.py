"""ZooKeeper in memory, for the simulator and tests (the fake beside `kazoo_client.py`).

`MemoryEnsemble` stands for the servers, and can make them and the ways to them fail; each of its
clients is a `ZooKeeper`. Each message takes a random time, so that messages of different clients
overtake each other; those of one connection never do. It runs on any asyncio loop, also in virtual
time.

By default there is one server, and a client loses it only by `suspend`, `expire`, `disconnect` and
`stop`. With three servers (`memory_servers.py`) followers lag and leaders are replaced. With
`is_cut`, servers and clients are hosts on a network: a client pings its server and tries another
one if that is silent, and a session of which no server hears expires, whether the client is cut
off, paused or killed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from functools import partial
from itertools import count

from kdist.config.addresses import ConnectString
from kdist.runtime.clock import Clock
from kdist.testing.memory_connection import Connection, Session
from kdist.testing.memory_link import Link
from kdist.testing.memory_servers import IsCut, Server, Servers
from kdist.testing.memory_tree import Ids
from kdist.zk.client import Delete, SessionState, WatchEvent, WatchKind
from kdist.zk.errors import MultiFailed, ZooKeeperError
from kdist.zk.session import (
    Answer,
    Children,
    Exists,
    Get,
    GetAcl,
    GetMany,
    Multi,
    Read,
    Request,
    SessionClient,
    Sync,
    Write,
)
from kdist.zk.znode_acls import Permission, digest_id

_RETRY_MS = 300  # between attempts to connect
_PINGS = 3  # per session timeout


class MemoryEnsemble(Servers):
    """The servers, sessions and connections; and the faults that a test can inject.

    `lost_answers` is the share of writes whose connection ends when they were carried out, before
    the client has the answer. `rng` decides about all delays and faults.
    """

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        delay_ms_max: float = 0.0,
        *,
        servers: Sequence[str] = ("memory",),
        is_cut: IsCut | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(servers, rng, delay_ms_max, is_cut or (lambda *_: False), loop)
        self._clock = clock
        self.has_network = is_cut is not None
        self._session_ids = count(0x1000)
        self._sessions: dict[int, Session] = {}  # that are not over
        self._connections: dict[MemoryZooKeeper, Connection] = {}
        self._cut_off: set[MemoryZooKeeper] = set()
        self._refused: dict[MemoryZooKeeper, None] = {}  # until `start`; in order
        self.lost_answers = 0.0

    def client(
        self,
        chroot: str = "",
        session_timeout_ms: int = 6_000,
        connection_timeout_ms: int = 6_000,
        *,
        host: str = "",
        servers: Sequence[str] = (),
        digest: str | None = None,
        sets_acls: bool = False,
    ) -> MemoryZooKeeper:
        """A client on `host` that is not connected yet, and knows all servers or the given ones.

        `digest` is the `user:password` that it shows.
        """
        names = tuple(servers or self._servers)
        connect = ConnectString.parse(",".join(names) + chroot)
        client = MemoryZooKeeper(
            self, connect, session_timeout_ms, connection_timeout_ms, host, names, sets_acls
        )
        client.ids = frozenset([] if digest is None else [("digest", digest_id(digest))])
        return client

    # -- faults

    def suspend(self, client: MemoryZooKeeper, noticed_after_ms: float = 0.0) -> None:
        """Cut a client off until `resume`: messages are lost, and the session timeout starts.

        For `noticed_after_ms` it believes itself connected, as a paused process does.
        """
        self._cut_off.add(client)
        self._disconnect(client, noticed_after_ms)

    def resume(self, client: MemoryZooKeeper) -> None:
        """Let a client connect again: it becomes CONNECTED, or EXPIRED."""
        self._cut_off.discard(client)
        self.connect_soon(client)

    def disconnect(self, client: MemoryZooKeeper) -> None:
        """End a client's connection; it connects again, perhaps to another server."""
        self._disconnect(client, self.delay_ms())

    def expire(self, client: MemoryZooKeeper) -> None:
        """End a client's session now; the client learns of it when a message can reach it."""
        if client.session is not None:
            self._expire(client.session)

    def stop(self) -> None:
        """Stop all servers: every client is disconnected, and no session expires."""
        for name in self._servers:
            self.crash(name)

    def start(self) -> None:
        """Start the servers with their state; sessions have their whole timeout again."""
        for name in self._servers:
            self.restart(name)
        refused, self._refused = self._refused, {}
        for client in refused:
            self.connect_soon(client)

    def server_of(self, client: MemoryZooKeeper) -> str | None:
        """The server that a client is connected to."""
        connection = self._connections.get(client)
        return connection.server.name if connection else None

    # -- connections

    def connect_soon(self, client: MemoryZooKeeper) -> None:
        """After a delay, connect the client if it wants to be connected and can be."""
        self._call_client(client, self.delay_ms(), self._accept, client)

    def _call_client(
        self,
        client: MemoryZooKeeper,
        delay_ms: float,
        call: Callable[..., None],
        *arguments: object,
    ) -> None:
        """In the client's process."""
        self._loop.call_later(delay_ms / 1000, call, *arguments, context=client.context)

    def _accept(self, client: MemoryZooKeeper) -> None:
        if client in self._connections or not client.wants_connection():
            return
        if client in self._cut_off:
            return  # `resume` asks again
        self._begin()
        server = self._servers[self._choose(client.servers)]
        if self._is_cut(client.host, server.name) or not self._is_in_touch(server):
            self._refuse(client)
        elif client.session is not None and client.session.is_over:
            client.session = None
            client.on_expired()
        elif client.session is not None and not self._has_applied(server, client.session.seen_zxid):
            self._refuse(client)  # it would see time go back
        else:
            self._connect(client, server)

    def _choose(self, names: Sequence[str]) -> str:
        return names[0] if len(names) == 1 else self._rng.choice(names)

    def _refuse(self, client: MemoryZooKeeper) -> None:
        if self.has_network or len(self._servers) > 1:
            self._call_client(client, _RETRY_MS, self.connect_soon, client)
        else:
            self._refused[client] = None

    def _connect(self, client: MemoryZooKeeper, server: Server) -> None:
        session = client.session
        if session is None:
            session = client.session = Session(
                next(self._session_ids), client.session_timeout_ms, client.ids
            )
            self._sessions[session.id] = session
        session.keep()
        if self.has_network:
            self._restart_expiry(session)
        is_stopped = partial(self._is_cut, client.host, server.name)
        to_server = Link(self._loop, self._context, self.delay_ms, is_stopped)
        to_client = Link(self._loop, client.context, self.delay_ms, is_stopped)
        connection = Connection(session, server, to_server, to_client)
        connection.reset = partial(self._reset, client, connection)
        last = session.connection
        if last is not None and last.server is server:
            connection.stay = last.stay
        session.connection = self._connections[client] = connection
        client.on_connected(connection)

    def _reset(
        self, client: MemoryZooKeeper, connection: Connection, noticed_after_ms: float
    ) -> None:
        if self._connections.get(client) is connection:
            self._disconnect(client, noticed_after_ms)

    def _disconnect(self, client: MemoryZooKeeper, noticed_after_ms: float) -> None:
        connection = self.give_up(client)
        if connection is not None and not self._is_cut(client.host, connection.server.name):
            self._call_client(client, noticed_after_ms, client.on_disconnected, connection)

    def give_up(self, client: MemoryZooKeeper) -> Connection | None:
        """End a client's connection, of which the client has to learn in some other way."""
        connection = self._connections.pop(client, None)
        if connection is not None:
            connection.cut()
            if not self.has_network:
                self._restart_expiry(connection.session)
        return connection

    def _drop_clients(self, server: Server) -> None:
        for client, connection in list(self._connections.items()):
            if connection.server is server:
                self._disconnect(client, self.delay_ms())

    def on_ping(self, connection: Connection) -> None:
        """A client says that it is there."""
        self._touch(connection)
        connection.to_client.send(connection.on_pong)

    def _touch(self, connection: Connection) -> None:
        """A message has arrived. A server that has lost the leader cannot keep a session alive."""
        if self._is_in_touch(connection.server):
            connection.session.heard_s = self._loop.time()

    def forget(self, client: MemoryZooKeeper) -> None:
        """The client will not resume its session, which expires unless it is over already."""
        self._disconnect(client, 0)
        client.session = None

    # -- sessions

    def _keep_sessions(self, *, are_timed: bool) -> None:
        for session in self._sessions.values():
            session.keep()
            if are_timed:
                self._restart_expiry(session)

    def _restart_expiry(self, session: Session) -> None:
        session.keep()
        session.heard_s = self._loop.time()
        if self._leader is not None and not session.is_over:
            self._arm_expiry(session, session.timeout_ms / 1000)

    def _arm_expiry(self, session: Session, left_s: float) -> None:
        session.expiry = self._call_later(left_s, partial(self._maybe_expire, session))

    def _maybe_expire(self, session: Session) -> None:
        left_s = session.heard_s + session.timeout_ms / 1000 - self._loop.time()
        if left_s > 0.001:
            self._arm_expiry(session, left_s)
        else:
            self._decide(partial(self._expire, session))

    def _expire(self, session: Session) -> None:
        connection = session.connection
        if connection is not None and not session.is_over:
            self._then(connection.server, partial(connection.reset, self.delay_ms()))
        self._end_session(session)

    def _end_session(self, session: Session) -> None:
        if session.is_over:
            return
        session.keep()
        session.is_over = True
        del self._sessions[session.id]
        ephemerals = self.tree.owned_by(session.id)
        if ephemerals:
            gone = tuple(Delete(path) for path in ephemerals)
            self._publish(self.tree.write(gone, session.id, self._clock.now_ms())[1])

    def close_session(self, connection: Connection) -> None:
        """The last message of a session arrives."""
        self._forward(connection.server, partial(self._close_session, connection))

    def _close_session(self, connection: Connection) -> None:
        if not connection.session.has_moved(connection):
            self._end_session(connection.session)
        self._then(connection.server, partial(connection.to_client.send, connection.end))

    # -- requests, as they arrive

    def serve(self, connection: Connection, request: Request, answer: Answer) -> None:
        """Carry out a request; events reach its client before its answer."""
        self._touch(connection)
        if isinstance(request, Read):
            connection.read(partial(self._read, connection, request, answer))
        else:
            connection.begin_write()
            self._forward(connection.server, partial(self._write, connection, request, answer))

    def _read(self, connection: Connection, request: Read, answer: Answer) -> None:
        try:
            found = _read(connection, request)
        except ZooKeeperError as error:
            found = error
        self._answer(connection, request, answer, found)

    def _write(self, connection: Connection, request: Write, answer: Answer) -> None:
        """At the leader, in the order of all writes."""
        session = connection.session
        if session.is_over or session.has_moved(connection):
            return  # nobody waits for the answer
        outcome = self._carry_out(request, session)
        self._then(
            connection.server, partial(self._answer_write, connection, request, answer, outcome)
        )

    def _carry_out(self, request: Write, session: Session) -> object:
        """The outcome or the error, as the leader finds it."""
        if isinstance(request, Sync):
            return None
        operations = request.operations if isinstance(request, Multi) else (request,)
        try:
            outcomes, events = self.tree.write(
                operations, session.id, self._clock.now_ms(), session.ids
            )
        except MultiFailed as failure:
            self._publish([])
            return failure if isinstance(request, Multi) else failure.error
        self._publish(events)
        return outcomes if isinstance(request, Multi) else outcomes[0]

    def _trigger_watches(self, server: Server, events: Iterable[WatchEvent]) -> None:
        for event in events:
            for connection in list(self._connections.values()):
                if connection.server is server:
                    connection.trigger(event)

    def _answer_write(
        self, connection: Connection, request: Request, answer: Answer, outcome: object
    ) -> None:
        """At the client's server, which has applied the write."""
        if self.lost_answers and self._rng.random() < self.lost_answers:
            connection.reset(self.delay_ms())
            return
        self._answer(connection, request, answer, outcome)
        connection.end_write()

    def _answer(
        self, connection: Connection, request: Request, answer: Answer, outcome: object
    ) -> None:
        zxid = connection.server.applied.zxid
        connection.to_client.send(partial(_resolve, connection, request, answer, outcome, zxid))


def _read(connection: Connection, request: Read) -> object:
    """What the server has applied; the watch is set at the moment of the read."""
    tree, ids = connection.server.applied, connection.session.ids
    found: object
    match request:
        case Get(path, _):
            tree.require(path, Permission.READ, ids)
            found = tree.get(path)
            connection.add_watch(request)
        case GetMany(paths):
            there = [path if tree.exists(path) else None for path in paths]
            for path in filter(None, there):
                tree.require(path, Permission.READ, ids)
            found = [path and tree.get(path) for path in there]
        case GetAcl(path):
            tree.require(path, Permission.READ | Permission.ADMIN, ids)
            found = tree.acl(path)
        case Exists(path, _):
            found = tree.exists(path)
            connection.add_watch(request)
        case Children(path, _):
            tree.require(path, Permission.READ, ids)
            found = tree.children(path)
            connection.add_watch(request)
    return found


class MemoryZooKeeper(SessionClient):
    """A client of a `MemoryEnsemble`, which made it. It belongs to the process that connects it."""

    def __init__(
        self,
        ensemble: MemoryEnsemble,
        connect: ConnectString,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        host: str,
        servers: tuple[str, ...],
        sets_acls: bool,
    ) -> None:
        super().__init__(connect, session_timeout_ms, connection_timeout_ms, sets_acls=sets_acls)
        self.ids: Ids = frozenset()
        self.host = host
        self.servers = servers
        self.session: Session | None = None  # to be resumed
        self.context = copy_context()  # its process's, once that has connected it
        self._ensemble = ensemble
        self._connection: Connection | None = None
        self._opened: asyncio.Future[None] | None = None

    def wants_connection(self) -> bool:
        """Whether it has a session that is not connected, or is opening one."""
        return self._state is SessionState.SUSPENDED or self._opened is not None

    async def _open(self) -> None:
        self.context = copy_context()
        self._opened = opened = asyncio.get_running_loop().create_future()
        self._ensemble.connect_soon(self)
        try:
            await self._wait_for(opened)
        finally:
            self._opened = None

    async def _end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.to_server.is_cut:
            connection.ended = asyncio.get_running_loop().create_future()
            connection.to_server.send(partial(self._ensemble.close_session, connection))
            await connection.ended
        self._ensemble.forget(self)

    def _send(self, request: Request, answer: Answer) -> None:
        connection = self._connection
        assert connection is not None, "CONNECTED means that there is a connection"
        connection.to_server.send(partial(self._ensemble.serve, connection, request, answer))

    def on_connected(self, connection: Connection) -> None:
        self._connection = connection
        self._session_key = connection.session.key
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)
        if self._ensemble.has_network:
            self._ping(connection)
        self._enter(SessionState.CONNECTED)

    def _ping(self, connection: Connection) -> None:
        """Say that this client is there, and give up a server that has not answered the last."""
        if self._connection is not connection:
            return
        if not connection.is_answered:
            self._ensemble.give_up(self)
            self.on_disconnected(connection)
            return
        connection.is_answered = False
        connection.to_server.send(partial(self._ensemble.on_ping, connection))
        pause_s = self._session_timeout_ms / 1000 / _PINGS
        asyncio.get_running_loop().call_later(pause_s, self._ping, connection)

    def on_disconnected(self, connection: Connection) -> None:
        """The connection is gone, and its watches with it."""
        if self._connection is not connection:
            return
        self._connection = None
        self._enter(SessionState.SUSPENDED)
        for watch, path in connection.known_watches:
            watch(WatchEvent(WatchKind.LOST, path))
        self._ensemble.connect_soon(self)

    def on_expired(self) -> None:
        self._enter(SessionState.EXPIRED)


def _resolve(
    connection: Connection, request: Request, answer: Answer, outcome: object, zxid: int
) -> None:
    """The answer arrives at the client, which from now on knows that its watch is set."""
    session = connection.session
    session.seen_zxid = max(session.seen_zxid, zxid)
    if isinstance(outcome, ZooKeeperError):
        if not answer.done():
            answer.set_exception(outcome)
        return
    if isinstance(request, Get | Exists | Children) and request.watch is not None:
        connection.known_watches.append((request.watch, request.path))
    if not answer.done():
        answer.set_result(outcome)
