"""A connection to each broker for produce requests, with backoff after failures.

Metadata and producer ids are requested on the separate connections of `client.cluster`, so that
they do not wait behind batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kdist.client.backoff import backoff_s
from kdist.client.cluster import Address, why_not
from kdist.client.outages import Outages
from kdist.client.producer.encoding import VERSION_MAX, VERSION_MIN
from kdist.errors import ApiError, Error
from kdist.network.client import Client, ClientSettings, InFlightRequest
from kdist.network.connection_state import CLOSED
from kdist.network.network import Network
from kdist.protocol import produce
from kdist.protocol.frame import put_correlation_id

# A broker needs milliseconds for so many batches, however small. Any sent on top of them would only
# queue there, while here they can still grow.
_BATCHES_MAX = 500

OnAnswer = Callable[[Any, ApiError | None], None]


class Outcome:
    """Receives the outcome of one produce request, and passes it to `on_answer`.

    It takes the place of a future, which would add two trips through the loop's queue to each
    request.
    """

    __slots__ = ("_is_done", "_on_answer")

    def __init__(self, on_answer: OnAnswer) -> None:
        self._on_answer = on_answer
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def set_result(self, response: Any) -> None:
        """The answer has come; with acks=0, None stands for it."""
        self._is_done = True
        self._on_answer(response, None)

    def set_exception(self, error: ApiError) -> None:
        self._is_done = True
        self._on_answer(None, error)


class Pipe(Client):
    """A connection that writes ready-made frames without copying them."""

    on_writable: Callable[[], None] | None = None  # set once the connection may be used

    @property
    def is_writable(self) -> bool:
        return not self._is_blocked

    @property
    def unsent_bytes(self) -> int:
        """What the socket has still to take."""
        return self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.on_writable is not None:
            self.on_writable()

    def post(self, frame: bytearray, version: int, outcome: Outcome, *, is_answered: bool) -> None:
        """Send a produce request. If no answer is due, `outcome` is set as soon as it is sent."""
        if self.state is CLOSED:
            error = ApiError(Error.NETWORK_EXCEPTION, f"{self.name}: it is closed")
            self._loop.call_soon(outcome.set_exception, error)
            return
        correlation_id = self.next_correlation_id()
        put_correlation_id(frame, correlation_id)
        if is_answered:
            now_s = self._loop.time()
            until_s = now_s + self._settings.request_timeout_ms / 1000
            self._expect(
                InFlightRequest(correlation_id, produce.API, version, outcome, now_s, until_s)
            )
        else:
            self._loop.call_soon(outcome.set_result, None)
        self._transport.write(memoryview(frame))  # a view: only what the socket leaves is copied

    def produce_version(self, *, oldest: int) -> int:
        """The version to send produce requests in; UNSUPPORTED_VERSION if it is below `oldest`."""
        version = min(self.version_of(produce.API), VERSION_MAX)
        if version < max(oldest, VERSION_MIN):
            raise ApiError(
                Error.UNSUPPORTED_VERSION, f"{self.name} is too old for this producer's batches"
            )
        return version


class LinkSettings(NamedTuple):
    """How to connect to brokers, and how much to have in flight."""

    client: ClientSettings
    backoff_ms: float
    backoff_ms_max: float
    in_flight_max: int
    version_min: int
    outages: Outages


class Link:
    """One broker: its connection, if there is one, and what is in flight to it."""

    __slots__ = (
        "_connecting",
        "_failures",
        "_network",
        "_on_change",
        "_settings",
        "batches_in_flight",
        "error",
        "in_flight",
        "pipe",
        "resting_until_s",
        "version",
    )

    def __init__(
        self, network: Network, settings: LinkSettings, on_change: Callable[[], None]
    ) -> None:
        self.pipe: Pipe | None = None
        self.version = VERSION_MAX
        self.error: ApiError | TimeoutError | None = None  # why there is no connection
        self.in_flight = 0  # requests
        self.batches_in_flight = 0
        self.resting_until_s = 0.0  # backing off after a failure, or throttled by the broker
        self._network = network
        self._settings = settings
        self._on_change = on_change
        self._connecting: asyncio.Task[None] | None = None
        self._failures = 0

    @property
    def is_down(self) -> bool:
        return self.pipe is None or self.pipe.is_closed

    @property
    def has_unsent(self) -> bool:
        """Whether the connection has buffered bytes that the socket has not taken yet."""
        return self.pipe is not None and not self.pipe.is_closed and self.pipe.unsent_bytes > 0

    def may_send(self) -> bool:
        """Whether another request may go out now."""
        pipe = self.pipe
        return (
            pipe is not None
            and not pipe.is_closed
            and self.in_flight < self._settings.in_flight_max
            and self.batches_in_flight < _BATCHES_MAX
            and pipe.is_writable
        )

    def maybe_connect(self, addresses: Mapping[int, Address], broker: int, now_s: float) -> None:
        """Connect, unless connected or connecting, backing off, or without an address."""
        if not self.is_down:
            return
        if self._connecting is not None or self.resting_until_s > now_s:
            return
        address = addresses.get(broker)
        if address is not None:
            self._connecting = self._network.loop.create_task(self._connect(address))

    async def _connect(self, address: Address) -> None:
        try:
            pipe = await Pipe.connect_negotiated(self._network, *address, self._settings.client)
        except (ApiError, TimeoutError) as error:  # fresh metadata may name another leader
            if isinstance(error, ApiError):
                self._settings.outages.lost(f"broker {address}", why_not(error, address))
            self._fail(error)
        else:
            self._settings.outages.back(f"broker {address}")
            self._take(pipe)
        finally:
            self._connecting = None
        self._on_change()

    def _take(self, pipe: Pipe) -> None:
        try:
            self.version = pipe.produce_version(oldest=self._settings.version_min)
        except ApiError as error:
            pipe.close()
            self._fail(error)
            return
        pipe.on_writable = self._on_change
        self.pipe = pipe
        self.error = None
        self._failures = 0

    def _fail(self, error: ApiError | TimeoutError) -> None:
        self.error = error
        settings = self._settings
        self.rest(1000 * backoff_s(self._failures, settings.backoff_ms, settings.backoff_ms_max))
        self._failures += 1

    def rest(self, pause_ms: float) -> None:
        """Send nothing to this broker for so long."""
        loop = self._network.loop
        self.resting_until_s = max(self.resting_until_s, loop.time() + pause_ms / 1000)
        loop.call_at(self.resting_until_s, self._on_change)

    def close(self) -> None:
        """Close the connection; requests in flight fail."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self.pipe is not None:
            self.pipe.close()
