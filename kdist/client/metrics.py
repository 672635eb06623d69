"""What a client tells of itself: its metrics as numbers by name, as text, and to a callback.

They are counted in plain integers, for each batch, request or take of records and not for each
record, and read on any thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kdist.client.guard import Guard
from kdist.errors import WrongType
from kdist.metrics.clients import ConnectionFamilies
from kdist.metrics.exposition import Exposition

OnStatistics = Callable[[dict[str, float]], object]


class ClientMeter:
    """The metrics of any client, which are those of its connections. Owner: the loop."""

    def __init__(self, client_id: str) -> None:
        self.connections = ConnectionFamilies.empty()
        self.exposition = Exposition(client_id=client_id)
        self.exposition.add_family(self.connections.brokers)
        self.exposition.add_family(self.connections.requests)
        self._telling: asyncio.TimerHandle | None = None

    def start_telling(
        self, loop: asyncio.AbstractEventLoop, every_s: float, on_statistics: OnStatistics | None
    ) -> None:
        """Call `on_statistics` on the loop so often, until `stop_telling`."""
        if on_statistics is None:
            return
        guard = Guard(loop.time)

        def tell() -> None:
            self._telling = loop.call_later(every_s, tell)
            guard.call(None, on_statistics, self.exposition.values())

        self._telling = loop.call_later(every_s, tell)

    def stop_telling(self) -> None:
        if self._telling is not None:
            self._telling.cancel()


class Measured:
    """A client that tells its metrics. Any thread may ask, also once the client is closed."""

    _meter: ClientMeter

    def metrics(self) -> dict[str, float]:
        """The client's metrics by name, as in `metrics_text`; of a histogram, count and sum.

        A name has its labels, as `kdist_producer_records_sent_total{topic="clicks"}`. Counters
        start at 0 with the client; what is not known is NaN.
        """
        return self._meter.exposition.values()

    def metrics_text(self, *others: Measured) -> str:
        """The client's metrics in Prometheus's text format; with those of other clients, if given.

        Clients of one program need different values of `client_id`, which labels them.
        """
        given: tuple[object, ...] = others  # whatever the caller's types are
        for each in given:
            if not isinstance(each, Measured):
                what = type(each).__name__
                raise WrongType(f"others must be clients of kdist: one is of type {what}")
        return self._meter.exposition.render(*(each._meter.exposition for each in others)).decode()
