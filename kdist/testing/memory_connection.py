"""How a `MemoryEnsemble` and its clients are connected: sessions, connections, watches.

A connection is two links to and from one server. Watches live on the server's side of a connection
and end with it; the client knows of those whose requests were answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from kdist.testing.memory_link import Link
from kdist.testing.memory_servers import Server
from kdist.testing.memory_tree import Ids
from kdist.zk.client import SessionKey, Watch, WatchEvent, WatchKind
from kdist.zk.session import Children, Exists, Get

_DATA_EVENTS = (WatchKind.CREATED, WatchKind.CHANGED, WatchKind.DELETED)
_CHILD_EVENTS = (WatchKind.CHILDREN, WatchKind.DELETED)


class Session:
    """A session as the servers keep it."""

    def __init__(self, session_id: int, timeout_ms: int, ids: Ids) -> None:
        self.id = session_id
        self.key = SessionKey(session_id, session_id.to_bytes(16))
        self.timeout_ms = timeout_ms
        self.ids = ids
        self.is_over = False
        self.heard_s = 0.0  # when the leader last knew that a server heard of the client
        self.expiry: asyncio.TimerHandle | None = None
        self.connection: Connection | None = None  # the last
        self.seen_zxid = 0  # by the client, which no server may take back in time

    def has_moved(self, connection: Connection) -> bool:
        """Whether it was at another server since: what is under way from here comes too late.

        What a server has from an earlier connection is on its way to the leader, before anything
        that comes by a later one.
        """
        return self.connection is None or self.connection.stay is not connection.stay

    def keep(self) -> None:
        """Stop the expiry timer."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None


class Connection:
    """A client's connection to a server, with the watches set on it.

    `reset` ends it from the server's side, and has the client notice after some ms.
    """

    reset: Callable[[float], None]

    def __init__(self, session: Session, server: Server, to_server: Link, to_client: Link) -> None:
        self.session = session
        self.server = server
        self.to_server, self.to_client = to_server, to_client
        self.stay = object()  # shared by consecutive connections of the session to one server
        self.data_watches: dict[str, list[Watch]] = {}
        self.child_watches: dict[str, list[Watch]] = {}
        self.known_watches: list[tuple[Watch, str]] = []  # those the client knows are set
        self.is_answered = True  # the last ping
        self.ended: asyncio.Future[None] | None = None  # of a client that closes its session
        self._writes_forwarded = self._writes_answered = 0
        self._reads: deque[tuple[int, Callable[[], None]]] = deque()  # with the writes before each

    def begin_write(self) -> None:
        """A write was forwarded to the leader; later reads wait for `end_write`."""
        self._writes_forwarded += 1

    def end_write(self) -> None:
        """A write was answered: serve the reads behind it."""
        self._writes_answered += 1
        while self._reads and self._reads[0][0] <= self._writes_answered:
            self._reads.popleft()[1]()

    def read(self, serve: Callable[[], None]) -> None:
        """Serve a read when all writes before it are answered."""
        if self._writes_answered == self._writes_forwarded:
            serve()
        else:
            self._reads.append((self._writes_forwarded, serve))

    def cut(self) -> None:
        self.to_server.cut()
        self.to_client.cut()
        self.end()

    def end(self) -> None:
        """Its session was closed, or the request to close it cannot arrive any more."""
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)

    def on_pong(self) -> None:
        """The client hears that the server is there."""
        self.is_answered = True

    def add_watch(self, request: Get | Exists | Children) -> None:
        """Set the request's watch on the server's side, at the moment of the read."""
        if request.watch is not None:
            watches = self.child_watches if isinstance(request, Children) else self.data_watches
            watches.setdefault(request.path, []).append(request.watch)

    def trigger(self, event: WatchEvent) -> None:
        """Send an event to the watches that it concerns, and remove them."""
        found: list[Watch] = []
        if event.kind in _DATA_EVENTS:
            found += self.data_watches.pop(event.path, [])
        if event.kind in _CHILD_EVENTS:
            found += self.child_watches.pop(event.path, [])
        for watch in found:
            self.to_client.send(partial(self._call, watch, event))

    def _call(self, watch: Watch, event: WatchEvent) -> None:
        self.known_watches.remove((watch, event.path))
        watch(event)
