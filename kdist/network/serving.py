"""What a served connection is given: its handler, its admission, its limits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kdist.metrics.network import NetworkMetrics
from kdist.network.turn import Turn
from kdist.runtime.tasks import Tasks

if TYPE_CHECKING:
    from kdist.network.connection import Connection


class Limits(NamedTuple):
    """What one connection may take: `in_flight_max` requests, `waiting_bytes_max` of answers.

    Of these, what is in memory: a range in a file counts little (`sending.RANGE_BYTES`).
    """

    frame_bytes_max: int = 100 << 20
    in_flight_max: int = 1000
    waiting_bytes_max: int = 1 << 20


class Handler(Protocol):
    """What the connections of a listener are for. All calls are the loop's."""

    def on_connect(self, connection: Connection) -> None:
        """A peer that is within the limits."""
        ...

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        """A whole request, without its size. `frame` holds until the hooks of this turn have run.

        ProtocolError closes the connection. `NotYet` has the frame handed over again, before all
        behind it, when nothing of the connection is `late`. Any other exception is a bug.
        """
        ...

    def on_disconnect(self, connection: Connection) -> None:
        """The connection is gone. Replies that it still waits for may be sent: nothing happens."""
        ...


class Connections(Protocol):
    """Who counts connections and admits them: the listener."""

    handler: Handler
    turn: Turn
    limits: Limits
    metrics: NetworkMetrics
    loop: asyncio.AbstractEventLoop
    tasks: Tasks

    def admit(self, connection: Connection) -> int:
        """How many have been admitted, with this one; 0: there is no room for it."""
        ...

    def forget(self, connection: Connection) -> None:
        """An admitted connection is gone."""
        ...
