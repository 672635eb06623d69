"""How a `MemoryEnsemble` and its clients are connected: lanes with delays, sessions, watches.

A connection is two lanes, each of which delivers messages in the order they were sent. Watches live
on the server's side of a connection and end with it; the client knows of those whose requests were
answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from kdist.zk.client import Watch, WatchEvent, WatchKind
from kdist.zk.session import Children, Exists, Get

_DATA_EVENTS = (WatchKind.CREATED, WatchKind.CHANGED, WatchKind.DELETED)
_CHILD_EVENTS = (WatchKind.CHILDREN, WatchKind.DELETED)


class Lane:
    """One direction of a connection: messages arrive in order, each after a delay."""

    def __init__(self, delay_ms: Callable[[], float]) -> None:
        self._delay_ms = delay_ms
        self._messages: deque[Callable[[], None]] = deque()
        self._last_due_s = 0.0
        self.is_cut = False

    def send(self, message: Callable[[], None]) -> None:
        """Deliver the message after a delay, unless the lane is cut first."""
        if self.is_cut:
            return
        loop = asyncio.get_running_loop()
        self._messages.append(message)
        self._last_due_s = max(self._last_due_s, loop.time() + self._delay_ms() / 1000)
        # Timers due at the same time may fire in any order, so each delivers the oldest message.
        loop.call_at(self._last_due_s, self._deliver)

    def _deliver(self) -> None:
        if self._messages:
            self._messages.popleft()()

    def cut(self) -> None:
        """Lose all messages in transit."""
        self.is_cut = True
        self._messages.clear()


class Session:
    """A session as the servers keep it."""

    def __init__(self, session_id: int, timeout_ms: int) -> None:
        self.id = session_id
        self.timeout_ms = timeout_ms
        self.is_over = False
        self.expiry: asyncio.TimerHandle | None = None

    def keep(self) -> None:
        """Stop the expiry timer."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None


class Connection:
    """A client's connection, with the watches set on it."""

    def __init__(self, session: Session, delay_ms: Callable[[], float]) -> None:
        self.session = session
        self.to_server, self.to_client = Lane(delay_ms), Lane(delay_ms)
        self.data_watches: dict[str, list[Watch]] = {}
        self.child_watches: dict[str, list[Watch]] = {}
        self.known_watches: list[tuple[Watch, str]] = []  # those the client knows are set
        self.ended: asyncio.Future[None] | None = None  # set by a client that says goodbye

    def cut(self) -> None:
        self.to_server.cut()
        self.to_client.cut()
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)

    def add_watch(self, request: Get | Exists | Children) -> None:
        """Set the request's watch on the server's side, at the moment of the read."""
        if request.watch is not None:
            watches = self.child_watches if isinstance(request, Children) else self.data_watches
            watches.setdefault(request.path, []).append(request.watch)

    def tell(self, event: WatchEvent) -> None:
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
