"""From frames to handlers and back: one handler per API, one reply slot per request.

A request is first offered to the fast path that its connection last used (`fast_path/`); those of a
client with quotas (`quotas.py`) never take one. On the general path it is decoded and
handed to a function that answers through its `Call`, or a coroutine function that returns the
answer (see `Routes`). Before that, and before anything is charged or looked up for it, `rights.py`
decides what of it its sender may do; the handler gets only that. `crashes.py` says what an
unexpected exception from a handler costs.

One connection's requests take effect in order, as Kafka promises, as far as a client can tell: all
after a `holding` request wait for it, and all but other produces wait for earlier produces.
Of those that take long, one connection has one under way at a time.

A request that is unknown or cannot be decoded closes its connection, since the peer could not read
an answer; but an unknown version of ApiVersions is answered in version 0 (KIP-511).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, NamedTuple

from kdist.broker.authorization import Authorizer
from kdist.broker.crashes import DROPPED, Crashes
from kdist.broker.fast_path import FastPaths, Registered
from kdist.broker.handlers import api_versions
from kdist.broker.quotas import Throttle, Throttles, Timed
from kdist.errors import PoisonousRequest, ProtocolError
from kdist.groups.coordinator import Caller
from kdist.metrics.broker import RequestMetrics
from kdist.metrics.declare import Family
from kdist.network.connection import Connection, ResponseSlot
from kdist.network.connection_state import CHANGE, DECODING, HELD, PRODUCES, WORK
from kdist.network.receiving import NotYet
from kdist.protocol import produce
from kdist.protocol.frame import (
    KEY_BYTES,
    RequestHeader,
    SplicedBuffer,
    UnsupportedVersionError,
    decode_request,
    decode_request_in_steps,
    encode_response,
)
from kdist.protocol.versions import TABLE
from kdist.replication.delayed import DelayedOperations
from kdist.runtime.clock import Clock
from kdist.security import rights
from kdist.security.decisions import Split
from kdist.security.rights import decide
from kdist.wire.primitives import Buffer

_NS_PER_S = 1_000_000_000
_MS_PER_S = 1000
_PRODUCE = produce.API.key.to_bytes(KEY_BYTES, "big")
_WHOLE_BYTES_MAX = 32 << 10  # of a request that is decoded at once: at most some 10 ms

Decoded = tuple[RequestHeader, Any]


class GeneralCall:
    """A request on the general path. It is answered exactly once.

    One is made per request, so it is a flat object. This module's share of a produce is 2.1 µs,
    without codec and handler (Debian's Python 3.11).
    """

    __slots__ = (
        "_complete",
        "_dispatch",
        "_is_holding",
        "_metrics",
        "_slot",
        "_started_ns",
        "_throttle",
        "api_key",
        "client_id",
        "connection",
        "correlation_id",
        "response",
        "version",
    )

    def __init__(self, header: RequestHeader, connection: Connection, dispatch: Dispatch) -> None:
        self.api_key, self.version, self.correlation_id, self.client_id = header
        self.connection = connection
        self._dispatch = dispatch
        self._complete: Callable[[Any], Any] | None = None
        self._is_holding = False
        self._throttle: Throttle | None = None
        self._metrics = dispatch.metrics[self.api_key]
        self.response: Any = None  # once it is answered
        self._slot: ResponseSlot = connection.reserve()
        self._started_ns = dispatch.now_ns()

    @property
    def listener(self) -> str:
        """The name of the listener that the request came in on."""
        return self._dispatch.listener

    @property
    def caller(self) -> Caller:
        """The client, as `kdist.groups` wants to know it."""
        return Caller(self.version, self.client_id or "", f"/{self.connection.host}")

    def begin_hold(self) -> None:
        """Hold back the connection's later requests until this one is answered."""
        if self._slot.chunks is None:
            self._is_holding = True
            self.connection.hold(CHANGE)

    def answer(self, response: Any) -> None:
        """Send the response. None means that there is none, as for a produce with acks=0."""
        if self._complete is not None:
            response = self._completed(response, self._complete)
        self.response = response
        frame = self._encoded(response)
        if self._throttle is not None:
            charged = self._charge(self._throttle, response, frame)
            frame = frame if charged is response else self._encoded(charged)
        if frame is None:
            self._slot.discard()
        else:
            self._slot.send((frame,) if frame.splices is None else frame.chunks())
        if self._is_holding:
            self.connection.end_hold(CHANGE)
        metrics = self._metrics
        metrics.answered += 1
        metrics.seconds.observe((self._dispatch.now_ns() - self._started_ns) / _NS_PER_S)

    # Rights

    def authorize(self, request: Any) -> Any:
        """The request, or what its sender may have of it; None if it was refused, and answered."""
        try:
            decision = decide(self.api_key, request, self.version, self.connection.subject)
        except Exception as error:
            raise PoisonousRequest("rights to a request cannot be decided") from error
        if decision is None:
            return request
        if isinstance(decision, Split):
            request, self._complete = decision
            return request
        self._answer_refused(decision.response)
        return None

    @property
    def is_split(self) -> bool:
        """Whether something of the request was refused, or its answer is for its sender alone."""
        return self._complete is not None

    def _completed(self, response: Any, complete: Callable[[Any], Any]) -> Any:
        """The answer to the whole request; without one, what was refused closes the connection."""
        if response is not None:
            return complete(response)
        self.connection.finish_soon()
        return None

    def _answer_refused(self, response: Any) -> None:
        if response is None:
            self.connection.finish_soon()
        self.answer_with_error(response)

    def _encoded(self, response: Any) -> SplicedBuffer | None:
        if response is None:
            return None
        return encode_response(self.version, self.correlation_id, response)

    # Quotas

    def begin_throttle(self, throttle: Throttle) -> None:
        """The client has quotas, by which the request has cost it something already."""
        self._throttle = throttle
        throttle.timed_ns = self._started_ns
        if throttle.pause_s:
            self._dispatch.pause(self.connection, throttle.pause_s)

    def take(self, partitions: int, *, is_strict: bool) -> bool:
        """Whether the client may have so many partitions created or deleted (`Throttle.take`)."""
        throttle = self._throttle
        return throttle is None or throttle.take(partitions, is_strict=is_strict)

    def _charge(self, throttle: Throttle, response: Any, frame: SplicedBuffer | None) -> Any:
        """Charge what the request has cost, and pause the connection; the response that says so."""
        size = sum(map(len, frame.chunks())) if frame else 0
        pause_s = throttle.charge(size, self._dispatch.now_ns())
        if pause_s:
            self._dispatch.pause(self.connection, pause_s)
        if response is None or not throttle.pause_s:
            return response
        return dataclasses.replace(response, throttle_time_ms=int(throttle.pause_s * _MS_PER_S))

    def crash(self, error: BaseException) -> None:
        """End the request, or the broker, because of what its handler raised (`crashes.py`)."""
        header = RequestHeader(self.api_key, self.version, self.correlation_id, self.client_id)
        self._dispatch.crashes.refuse(error, header, self._slot, self.connection)
        self._slot = DROPPED

    def answer_with_error(self, response: Any) -> None:
        """As `answer`, for a response with a top-level error code, which is counted if set."""
        if getattr(response, "error_code", 0):
            self._metrics.failed += 1
        self.answer(response)


DirectHandler = Callable[[Any, GeneralCall], None]
WaitingHandler = Callable[[Any, GeneralCall], Awaitable[Any]]


class Routes(NamedTuple):
    """The handler of each API key, by kind."""

    direct: Mapping[int, DirectHandler]
    waiting: Mapping[int, WaitingHandler]
    """Carried out by tasks, one at a time for each connection: their answers grow with the cluster,
    and a burst of requests must cost neither the time nor the memory of all answers at once."""
    holding: frozenset[int]
    """API keys that the connection's later requests wait for, unless they are answered at once:
    they must see its effect, or its long answer, made in steps, must be the only one under way."""
    held: DirectHandler
    """What answers a fetch instead while its client owes for earlier ones."""

    def check(self) -> None:
        """Assert that exactly the APIs of the version table have a handler, and one each."""
        keys = [*self.direct, *self.waiting]
        assert sorted(keys) == sorted(api.key for api in TABLE), "handlers and versions differ"


class Shared(NamedTuple):
    """What the dispatches of a broker's listeners share."""

    clock: Clock
    requests: Family[RequestMetrics]
    waiting: DelayedOperations
    fast_paths: FastPaths
    crashes: Crashes
    throttles: Throttles
    authorizer: Authorizer


class Dispatch:
    """The `Handler` of one listener's connections. Owner: the broker."""

    def __init__(self, listener: str, routes: Routes, shared: Shared) -> None:
        routes.check()
        rights.check()
        self.listener = listener
        self.now_ns = shared.clock.monotonic_ns
        self.metrics = {api.key: shared.requests[(api.name,)] for api in TABLE}
        self._routes = routes
        self._waiting = shared.waiting
        self._fast_paths, self._queueing = shared.fast_paths
        self._flush = self._queueing.flush
        self.crashes = shared.crashes
        self._throttles = shared.throttles
        self._authorizer = shared.authorizer
        self._quotas = shared.throttles.quotas
        self._paused: set[Connection] = set()  # since the quotas last changed
        self._tasks: set[asyncio.Task[None]] = set()

    def on_connect(self, connection: Connection) -> None:
        """Whoever authenticates peers has done so before."""
        connection.prove()
        connection.subject = self._authorizer.subject(connection.principal, connection.host)

    def on_disconnect(self, connection: Connection) -> None:
        """Cancel the connection's delayed operations; they are not answered."""
        self._waiting.cancel_all(connection)
        self._paused.discard(connection)

    def on_frame(self, connection: Connection, frame: memoryview) -> bool:
        """Answer a request, now or later; whether by a fast path. `ProtocolError`, `NotYet`.

        Requests that a fast path has queued for the end of the tick are flushed before any request
        takes the general path, so that it sees their effect. Fast paths need not look for pending
        produces: a fetch takes one only if none came since the last fetch on the general path.
        """
        registered: Registered | None = connection.context
        try:
            if registered is not None and registered[0].try_handle(frame, registered, connection):
                return True
            if self._queueing.queue:
                self._flush()
            if connection.pending_produces and frame[:KEY_BYTES] != _PRODUCE:
                raise NotYet(PRODUCES)
            if connection.is_working and _key_of(frame) in self._routes.waiting:
                raise NotYet(WORK)
            if len(frame) > _WHOLE_BYTES_MAX and frame[:KEY_BYTES] != _PRODUCE:
                self._begin_decoding(connection, connection.kept(frame))
            else:
                self._handle(connection, frame)
        except (NotYet, ProtocolError):
            raise
        except Exception as error:  # noqa: BLE001 - `Crashes` says what it costs
            self.crashes.meet(error, _key_of(frame), connection)
        return False

    def _begin_decoding(self, connection: Connection, frame: Buffer) -> None:
        """Decode a large request in steps, between which other connections get their turn.

        Not a Produce, which has many bytes but few entries.
        """
        steps = decode_request_in_steps(frame)
        try:
            next(steps)
        except UnsupportedVersionError as error:
            self._answer_unsupported(connection, error)
            return
        connection.hold(DECODING)
        asyncio.get_running_loop().call_soon(self._go_on_decoding, connection, frame, steps)

    def _go_on_decoding(
        self, connection: Connection, frame: Buffer, steps: Generator[None, None, Decoded]
    ) -> None:
        """One step; the next follows in another callback of the loop."""
        if connection.state is not HELD:
            return  # it takes no requests any more
        try:
            next(steps)
        except StopIteration as end:
            self._flush()
            self._handle(connection, memoryview(frame), end.value)
            connection.end_hold(DECODING)
        except ProtocolError as error:
            connection.refuse(error)
        except Exception as error:  # noqa: BLE001 - `Crashes` says what it costs
            self.crashes.meet(error, _key_of(memoryview(frame)), connection)
        else:
            asyncio.get_running_loop().call_soon(self._go_on_decoding, connection, frame, steps)

    def _handle(
        self, connection: Connection, frame: memoryview, decoded: Decoded | None = None
    ) -> None:
        """The general path: decode a request and hand it to its handler."""
        try:
            header, request = decoded or decode_request(frame)
        except UnsupportedVersionError as error:
            self._answer_unsupported(connection, error)
            return
        key = header.api_key
        call = GeneralCall(header, connection, self)
        throttle: Throttle | None = None
        try:
            if connection.subject.is_limited:
                request = call.authorize(request)
                if request is None:
                    return
            if self._quotas.limits:
                throttle = self._begin_throttle(call, header, request, len(frame))
            if key in self._routes.direct:
                is_held = throttle is not None and throttle.is_held
                (self._routes.held if is_held else self._routes.direct[key])(request, call)
                if throttle is not None:
                    throttle.end_step(self.now_ns())
            else:
                self._start(self._routes.waiting[key](request, call), call, throttle)
            if key in self._routes.holding:
                call.begin_hold()
            path = self._fast_paths.get(key)
            if path is not None and throttle is None and not call.is_split:
                scope = connection.subject, self.listener
                connection.context = path.register(frame, header, request, call.response, scope)
        except Exception as error:  # noqa: BLE001 - `Crashes` says what it costs
            call.crash(error)

    def _begin_throttle(
        self, call: GeneralCall, header: RequestHeader, request: Any, size: int
    ) -> Throttle | None:
        throttle = self._throttles.begin(header, request, size, call.connection.subject)
        if throttle is not None:
            call.begin_throttle(throttle)
        return throttle

    def pause(self, connection: Connection, seconds: float) -> None:
        """Take no requests from a connection for so long, or until the quotas change."""
        if connection.throttle(seconds):
            self._paused.add(connection)

    def end_pauses(self) -> None:
        """The quotas have changed: take requests from all connections, and charge them anew."""
        paused, self._paused = self._paused, set()
        for connection in paused:
            connection.end_throttle()

    def _answer_unsupported(self, connection: Connection, error: UnsupportedVersionError) -> None:
        header = error.header
        if header.api_key != api_versions.KEY:
            raise error
        in_version_0 = GeneralCall(header._replace(api_version=0), connection, self)
        in_version_0.answer_with_error(api_versions.unsupported())

    # Handlers that wait

    def _start(self, work: Awaitable[Any], call: GeneralCall, throttle: Throttle | None) -> None:
        if throttle is not None:
            throttle.end_step(self.now_ns())
            work = Timed(work, throttle, self.now_ns)
        call.connection.is_working = True
        task = asyncio.ensure_future(_answer_with(work, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Cancel the `waiting` handlers; their requests are not answered."""
        for task in self._tasks:
            task.cancel()


def _key_of(frame: memoryview) -> int:
    return int.from_bytes(frame[:KEY_BYTES], "big")


async def _answer_with(work: Awaitable[Any], call: GeneralCall) -> None:
    try:
        call.answer_with_error(await work)
    except Exception as error:  # noqa: BLE001 - `Crashes` says what it costs
        call.crash(error)
    call.connection.is_working = False  # not if it was cancelled: then the broker ends
    call.connection.end_hold(WORK)
