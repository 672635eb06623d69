"""ZooKeeper in memory, for the simulator and tests (the fake beside `kazoo_client.py`).

`MemoryEnsemble` stands for the servers and the network, and can make both fail; each of its clients
is a `ZooKeeper`. Each message takes a random time, so that messages of different clients overtake
each other; those of one connection never do. It runs on any asyncio loop, also in virtual time. It
is simpler than the real thing in one respect: a read never returns stale data.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from functools import partial
from itertools import count

from kdist.config.connect_string import ConnectString
from kdist.runtime.clock import Clock
from kdist.zk.client import Delete, SessionState, WatchEvent, WatchKind
from kdist.zk.errors import MultiFailed, ZooKeeperError
from kdist.zk.memory_connection import Connection, Session
from kdist.zk.memory_tree import Tree
from kdist.zk.session import Answer, Children, Exists, Get, GetMany, Multi, Request, SessionClient


class MemoryEnsemble:
    """The servers: tree, sessions and connections; and the faults that a test can inject."""

    def __init__(self, clock: Clock, rng: random.Random, delay_ms_max: float = 0.0) -> None:
        self._clock = clock
        self._rng = rng
        self._delay_ms_max = delay_ms_max
        self._is_running = True
        self._session_ids = count(0x1000)
        self._connections: dict[MemoryZooKeeper, Connection] = {}
        self._sessions: dict[MemoryZooKeeper, Session] = {}
        self._cut_off: set[MemoryZooKeeper] = set()
        self._refused: dict[MemoryZooKeeper, None] = {}  # while the servers are down; in order
        self.tree = Tree()

    def client(
        self,
        chroot: str = "",
        session_timeout_ms: int = 6_000,
        connection_timeout_ms: int = 6_000,
    ) -> MemoryZooKeeper:
        """A client that is not connected yet."""
        connect = ConnectString.parse(f"memory{chroot}")
        return MemoryZooKeeper(self, connect, session_timeout_ms, connection_timeout_ms)

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
        self.maybe_accept(client)

    def expire(self, client: MemoryZooKeeper) -> None:
        """End a client's session now; the client learns of it when a message can reach it."""
        session = self._sessions.get(client)
        if session is not None and not session.is_over:
            self._disconnect(client, self.delay_ms())
            self._end_session(session)

    def stop(self) -> None:
        """Stop all servers: every client is disconnected, and no session expires."""
        self._is_running = False
        for client in list(self._connections):
            self._disconnect(client, self.delay_ms())
        for session in self._sessions.values():
            session.keep()

    def start(self) -> None:
        """Start the servers with their state; sessions have their whole timeout again."""
        self._is_running = True
        for session in self._sessions.values():
            self._let_run_out(session)
        refused, self._refused = self._refused, {}
        for client in refused:
            self.maybe_accept(client)

    # -- connections

    def delay_ms(self) -> float:
        return self._rng.uniform(0, self._delay_ms_max)

    def maybe_accept(self, client: MemoryZooKeeper) -> None:
        """After a delay, connect the client if it wants to be connected and can be."""
        asyncio.get_running_loop().call_later(self.delay_ms() / 1000, self._accept, client)

    def _accept(self, client: MemoryZooKeeper) -> None:
        if client in self._connections or not client.wants_connection():
            return
        if client in self._cut_off:
            return  # `resume` asks again
        if not self._is_running:
            self._refused[client] = None
            return
        session = self._sessions.get(client)
        if session is None:
            session = Session(next(self._session_ids), client.session_timeout_ms)
            self._sessions[client] = session
        if session.is_over:
            del self._sessions[client]
            client.hear_expired()
            return
        session.keep()
        connection = Connection(session, self.delay_ms)
        self._connections[client] = connection
        client.hear_connected(connection)

    def _disconnect(self, client: MemoryZooKeeper, noticed_after_ms: float) -> None:
        connection = self._connections.pop(client, None)
        if connection is None:
            return
        connection.cut()
        self._let_run_out(connection.session)
        asyncio.get_running_loop().call_later(
            noticed_after_ms / 1000, client.hear_disconnected, connection
        )

    def _let_run_out(self, session: Session) -> None:
        session.keep()
        if self._is_running and not session.is_over:
            session.expiry = asyncio.get_running_loop().call_later(
                session.timeout_ms / 1000, self._end_session, session
            )

    def _end_session(self, session: Session) -> None:
        session.keep()
        session.is_over = True
        ephemerals = self.tree.owned_by(session.id)
        if ephemerals:
            gone = tuple(Delete(path) for path in ephemerals)
            self._tell(self.tree.write(gone, session.id, self._clock.now_ms())[1])

    def _tell(self, events: Iterable[WatchEvent]) -> None:
        for event in events:
            for connection in list(self._connections.values()):
                connection.tell(event)

    def forget(self, client: MemoryZooKeeper) -> None:
        """The client will not resume its session, which expires unless it is over already."""
        self._disconnect(client, 0)
        self._sessions.pop(client, None)

    # -- requests, as they arrive

    def say_goodbye(self, connection: Connection) -> None:
        """The last message of a session."""
        self._end_session(connection.session)
        ended = connection.ended
        assert ended is not None, "a client that says goodbye waits for the answer"
        connection.to_client.send(lambda: None if ended.done() else ended.set_result(None))

    def serve(self, connection: Connection, request: Request, answer: Answer) -> None:
        """Carry out a request; events reach its client before its answer."""
        try:
            outcome = self._carry_out(connection, request)
        except ZooKeeperError as error:
            connection.to_client.send(partial(_refuse, answer, error))
        else:
            connection.to_client.send(partial(_settle, connection, request, answer, outcome))

    def _carry_out(self, connection: Connection, request: Request) -> object:
        match request:
            case Get(path, _):
                found: object = self.tree.get(path)
                connection.add_watch(request)
                return found
            case GetMany(paths):
                return [self.tree.get(path) if self.tree.exists(path) else None for path in paths]
            case Exists(path, _):
                connection.add_watch(request)
                return self.tree.exists(path)
            case Children(path, _):
                found = self.tree.children(path)
                connection.add_watch(request)
                return found
        operations = request.operations if isinstance(request, Multi) else (request,)
        try:
            outcomes, events = self.tree.write(
                operations, connection.session.id, self._clock.now_ms()
            )
        except MultiFailed as failure:
            raise failure if isinstance(request, Multi) else failure.error from None
        self._tell(events)
        return outcomes if isinstance(request, Multi) else outcomes[0]


class MemoryZooKeeper(SessionClient):
    """A client of a `MemoryEnsemble`, which made it."""

    def __init__(
        self,
        ensemble: MemoryEnsemble,
        connect: ConnectString,
        session_timeout_ms: int,
        connection_timeout_ms: int,
    ) -> None:
        super().__init__(connect, session_timeout_ms, connection_timeout_ms)
        self._ensemble = ensemble
        self._connection: Connection | None = None
        self._opened: asyncio.Future[None] | None = None

    def wants_connection(self) -> bool:
        """Whether it has a session that is not connected, or is opening one."""
        return self._state is SessionState.SUSPENDED or self._opened is not None

    async def _open(self) -> None:
        self._opened = asyncio.get_running_loop().create_future()
        self._ensemble.maybe_accept(self)
        try:
            await self._wait_for(self._opened)
        finally:
            self._opened = None

    async def _end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.to_server.is_cut:
            connection.ended = asyncio.get_running_loop().create_future()
            connection.to_server.send(partial(self._ensemble.say_goodbye, connection))
            await connection.ended
        self._ensemble.forget(self)

    def _send(self, request: Request, answer: Answer) -> None:
        connection = self._connection
        assert connection is not None, "CONNECTED means that there is a connection"
        connection.to_server.send(partial(self._ensemble.serve, connection, request, answer))

    def hear_connected(self, connection: Connection) -> None:
        self._connection = connection
        self._session_id = connection.session.id
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)
        self._enter(SessionState.CONNECTED)

    def hear_disconnected(self, connection: Connection) -> None:
        """The connection is gone, and its watches with it."""
        if self._connection is not connection:
            return
        self._connection = None
        self._enter(SessionState.SUSPENDED)
        for watch, path in connection.known_watches:
            watch(WatchEvent(WatchKind.LOST, path))
        self._ensemble.maybe_accept(self)

    def hear_expired(self) -> None:
        self._enter(SessionState.EXPIRED)


def _refuse(answer: Answer, error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _settle(connection: Connection, request: Request, answer: Answer, outcome: object) -> None:
    """The answer arrives at the client, which from now on knows that its watch is set."""
    if isinstance(request, Get | Exists | Children) and request.watch is not None:
        connection.known_watches.append((request.watch, request.path))
    if not answer.done():
        answer.set_result(outcome)
