"""What a served connection needs from outside: its handler, admission and limits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kdist.metrics.network import NetworkMetrics
from kdist.network.tick import Tick
from kdist.runtime.tasks import Tasks

if TYPE_CHECKING:
    from kdist.network.connection import Connection


class Limits(NamedTuple):
    """Limits of one connection: its largest frame, requests in flight, bytes of unsent answers.

    Answers count with their bytes in memory; a file range counts `sending.RANGE_BYTES`.
    """

    frame_bytes_max: int = 100 << 20
    in_flight_max: int = 1000
    waiting_bytes_max: int = 1 << 20


class Handler(Protocol):
    """Serves the requests of a listener's connections. Called on the loop's thread only."""

    def on_connect(self, connection: Connection) -> None:
        """A connection was admitted."""
        ...

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        """A whole request, without its size. `frame` is valid until this tick's hooks have run.

        `ProtocolError` closes the connection. After `NotYet` the frame is handed over again, before
        all later ones, once no produce of the connection is pending. Anything else raised is a bug.
        """
        ...

    def on_disconnect(self, connection: Connection) -> None:
        """The connection is gone. Sending a reply that was still due does nothing."""
        ...


class Connections(Protocol):
    """Admits and counts connections, and holds what they share: the listener."""

    handler: Handler
    tick: Tick
    limits: Limits
    metrics: NetworkMetrics
    loop: asyncio.AbstractEventLoop
    tasks: Tasks

    def admit(self, connection: Connection) -> int:
        """The number of connections ever admitted, including this one; 0 if it is refused."""
        ...

    def forget(self, connection: Connection) -> None:
        """An admitted connection is gone."""
        ...
