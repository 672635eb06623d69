"""The client's side of a connection: sends requests, and matches each with its answer.

Used by all that ask a broker: the controller, other brokers and the clients. Requests are
pipelined, and a server answers them in order. When a connection ends, for whatever reason, all
unanswered requests fail with NETWORK_EXCEPTION; whether to reconnect is the caller's decision.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from typing import Any, NamedTuple, Protocol, Self, cast

from kdist.errors import ApiError, Error, ProtocolError, UserError
from kdist.metrics.clients import ConnectionFamilies
from kdist.network.client_security import ClientSecurity, Sasl, authenticate
from kdist.network.connection_state import CLOSED
from kdist.network.network import CLIENT_PATIENCE, Network, Patience
from kdist.network.receiving import FrameReceiver
from kdist.network.request_meter import RequestMeter
from kdist.protocol import api_versions
from kdist.protocol.api import Api
from kdist.protocol.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kdist.protocol.frame import (
    RequestHeader,
    decode_response,
    encode_request,
    get_response_header,
    put_correlation_id,
)
from kdist.protocol.schema import NEVER

logger = logging.getLogger(__name__)

THROTTLED = "%s throttles client %r, whose quota is used up"

_CORRELATION_ID_MAX = (1 << 31) - 1
_UNSUPPORTED = Error.UNSUPPORTED_VERSION.code.to_bytes(2, "big")


class ClientSettings(NamedTuple):
    """A client's name, timeouts and limits."""

    client_id: str
    software_version: str = "unknown"
    request_timeout_ms: float = 30_000
    connect_timeout_ms: float = 10_000
    in_flight_max: int = 100
    frame_bytes_max: int = 100 << 20
    patience: Patience = CLIENT_PATIENCE
    metrics: ConnectionFamilies | None = None  # to count in
    security: ClientSecurity | None = None


class Answered(Protocol):
    """What receives an answer: a future, or something with these methods of one."""

    def done(self) -> bool:
        """Whether nobody waits for it any more."""
        ...

    def set_result(self, result: Any, /) -> None:
        """The answer arrived."""
        ...

    def set_exception(self, exception: ApiError, /) -> None:
        """No answer will come."""
        ...


class InFlightRequest(NamedTuple):
    """A request in flight: what gets its answer, and the times of asking, and of giving up, on the
    loop's clock.
    """

    correlation_id: int
    api: Api
    version: int
    answered: Answered
    asked_s: float
    until_s: float


class HeldBack:
    """Stands for the transport while a client authenticates again: keeps what is to be sent.

    Between the requests of an exchange a broker takes no other.
    """

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def write(self, frame: bytes | bytearray | memoryview) -> None:
        """Keep a copy: the caller may change the frame."""
        self.frames.append(bytes(frame))

    def get_write_buffer_size(self) -> int:
        """The bytes that are kept."""
        return sum(map(len, self.frames))


class Client(FrameReceiver):
    """One connection to one broker. Owner: the loop. Made by `Client.connect`."""

    _wire: asyncio.Transport
    _transport: asyncio.Transport | HeldBack  # what is not of an exchange is written to

    def __init__(self, network: Network, settings: ClientSettings, name: str) -> None:
        super().__init__(network.tick, settings.frame_bytes_max)
        self.versions: dict[int, ApiVersion] = {}  # the broker's, by API key; see `negotiate`
        self.name = name
        self._loop = network.loop
        self._settings = settings
        self._last_correlation_id = 0
        self._in_flight: deque[InFlightRequest] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._renewal: asyncio.TimerHandle | None = None  # when to authenticate again
        self._renewing: asyncio.Task[None] | None = None
        self._throttle_end_s = 0.0  # until then the broker reads nothing: a quota is used up
        self._is_blocked = False  # whether the transport still holds unsent bytes
        self._room_made = asyncio.Event()  # set whenever waiters in `_room` should look again
        self._meter: RequestMeter | None = None
        if settings.metrics is not None:
            self._meter = RequestMeter(settings.metrics, name, network.loop.time)

    @classmethod
    async def connect(
        cls, network: Network, host: str, port: int, settings: ClientSettings
    ) -> Self:
        """A client that is connected, and authenticated if it has a user.

        `ApiError` NETWORK_EXCEPTION if it cannot connect, SASL_AUTHENTICATION_FAILED if the broker
        refuses the user.
        """
        client = await cls._connect(network, host, port, settings)
        sasl = settings.security.sasl if settings.security is not None else None
        if sasl is not None:
            try:
                await client.negotiate()
                await client._authenticate(sasl)
            except BaseException:
                client.close()
                raise
        return client

    @classmethod
    async def _connect(
        cls, network: Network, host: str, port: int, settings: ClientSettings
    ) -> Self:
        name, security = f"{host}:{port}", settings.security
        try:
            # Not `wait_for`: a cancellation as the connection completes would be swallowed.
            async with asyncio.timeout(settings.connect_timeout_ms / 1000):
                tls = security.tls if security is not None else None
                return await network.connect(
                    lambda: cls(network, settings, name), host, port, settings.patience, tls
                )
        except UnicodeError as error:  # of a..b, for instance: no label may be empty
            why = "not a valid host name"
            raise ApiError(Error.NETWORK_EXCEPTION, f"cannot connect to {name}: {why}") from error
        except OSError as error:
            if settings.metrics is not None:
                settings.metrics.brokers[name,].failed_connections += 1
            why = error.strerror or str(error) or "no answer"
            raise ApiError(Error.NETWORK_EXCEPTION, f"cannot connect to {name}: {why}") from error

    @classmethod
    async def connect_negotiated(
        cls, network: Network, host: str, port: int, settings: ClientSettings
    ) -> Self:
        """As `connect` and `negotiate`; on any error the connection is closed."""
        client = await cls.connect(network, host, port, settings)
        try:
            if not client.versions:
                await client.negotiate()
        except BaseException:
            client.close()
            raise
        return client

    # Asking

    async def send(
        self, request: Any, version: int | None = None, timeout_ms: float | None = None
    ) -> Any:
        """The answer to `request`, a message of `kdist.protocol`, in the negotiated version.

        `ApiError`: NETWORK_EXCEPTION if the connection ends before the answer; REQUEST_TIMED_OUT
        after `timeout_ms`, which also ends the connection, since later answers come after this one.
        `UserError` if the request cannot be encoded, such as a number out of range or text that is
        not valid UTF-8: nothing was sent.
        """
        if self._is_blocked or len(self._in_flight) >= self._settings.in_flight_max:
            await self._room(self._settings.in_flight_max, timeout_ms)
        return await self.ask(request, version, timeout_ms)

    def ask(
        self, request: Any, version: int | None = None, timeout_ms: float | None = None
    ) -> asyncio.Future[Any]:
        """As `send`, but sent at once: the caller limits how many requests are in flight."""
        answered: asyncio.Future[Any] = self._loop.create_future()
        self.ask_for(answered, request, version, timeout_ms)
        return answered

    def ask_for(
        self,
        answered: Answered,
        request: Any,
        version: int | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """As `ask`: `answered` gets the answer, as soon as it is decoded."""
        sent = self._send(request, version)
        limit_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        now_s = self._loop.time()
        self._expect(InFlightRequest(*sent, answered, now_s, now_s + limit_ms / 1000))

    async def tell(self, request: Any, version: int | None = None) -> None:
        """Send a request that has no answer: a produce with acks=0."""
        await self._room()
        self._send(request, version)

    async def _room(
        self, in_flight_max: int | None = None, timeout_ms: float | None = None
    ) -> None:
        """Wait until nothing is unsent and fewer than `in_flight_max` requests are in flight.

        Also returns when the connection is closed. After `timeout_ms` it ends the connection and
        raises as `send` does.
        """
        limit_ms = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        while self.state is not CLOSED and (
            self._is_blocked
            or (in_flight_max is not None and len(self._in_flight) >= in_flight_max)
        ):
            self._room_made.clear()
            try:
                async with asyncio.timeout(limit_ms / 1000):
                    await self._room_made.wait()
            except TimeoutError:
                why = "did not accept a request in time"
                self._end(self._network_exception(f"it {why}"))
                raise ApiError(Error.REQUEST_TIMED_OUT, f"{self.name} {why}") from None

    def _send(self, request: Any, version: int | None) -> tuple[int, Api, int]:
        """Send a request; its correlation id, API and version."""
        if self.state is CLOSED:
            raise self._network_exception("the connection is closed")
        api: Api = request.api
        if version is None:
            version = self.version_of(api)
        correlation_id = self.next_correlation_id()
        self._transport.write(self.encode(request, version, correlation_id))
        return correlation_id, api, version

    def encode(self, request: Any, version: int, correlation_id: int) -> bytearray:
        """A request's frame; `UserError` if it cannot be encoded."""
        api: Api = request.api
        header = RequestHeader(api.key, version, correlation_id, self._settings.client_id)
        try:
            frame = encode_request(header, request)
        except struct.error as error:
            raise UserError(f"a number is out of range for {api.name}: {error}") from None
        except UnicodeEncodeError as error:
            raise UserError(f"{error.object!r} is not valid UTF-8 text") from None
        except (AttributeError, TypeError, ValueError) as error:  # the codec does not check types
            raise UserError(f"cannot encode {api.name}: {error}") from error
        assert frame.splices is None, "requests are bytes"
        return frame

    def repeat(
        self, frame: bytearray, api: Api, version: int, answered: Answered, timeout_ms: float
    ) -> None:
        """Send a frame that `encode` made again, under a new correlation id, for `answered`.

        `ApiError` NETWORK_EXCEPTION if the connection has ended.
        """
        if self.state is CLOSED:
            raise self._network_exception("the connection is closed")
        correlation_id = self.next_correlation_id()
        put_correlation_id(frame, correlation_id)
        self._transport.write(bytes(frame))
        now_s = self._loop.time()
        until_s = now_s + timeout_ms / 1000
        self._expect(InFlightRequest(correlation_id, api, version, answered, now_s, until_s))

    def _expect(self, request: InFlightRequest) -> None:
        """Add a request to those in flight.

        They share one timer, which is not cancelled when an answer comes: a timer for each request
        was a tenth of a small request's cost.
        """
        if self._throttle_end_s:
            request = self._after_throttle(request)
        self._in_flight.append(request)
        if self._meter is not None:
            self._meter.broker.requests_in_flight += 1
        timer = self._timer
        if timer is None or timer.when() > request.until_s:
            if timer is not None:
                timer.cancel()
            self._timer = self._loop.call_at(request.until_s, self._check_deadlines)

    def _after_throttle(self, request: InFlightRequest) -> InFlightRequest:
        """The request with as much more time as the pause still lasts."""
        left_s = max(0.0, self._throttle_end_s - self._loop.time())
        if not left_s:
            self._throttle_end_s = 0.0
        return request._replace(until_s=request.until_s + left_s)

    def _check_deadlines(self) -> None:
        self._timer = None
        open_ = [each for each in self._in_flight if not each.answered.done()]
        if open_:
            first = min(open_, key=lambda each: each.until_s)
            if first.until_s <= self._loop.time():
                self._time_out(first)
            else:
                self._timer = self._loop.call_at(first.until_s, self._check_deadlines)

    def _note_throttle(self, throttle_s: float) -> None:
        """The broker reads nothing for so long (KIP-219): what is in flight has as much more.

        Each answer within a pause tells what is left of it: only what lengthens it counts.
        """
        now_s = self._loop.time()
        more_s = now_s + throttle_s - max(now_s, self._throttle_end_s)
        if more_s > 0:
            logger.debug(THROTTLED, self.name, self._settings.client_id)
            self._throttle_end_s = now_s + throttle_s
            if self._meter is not None:
                self._meter.broker.throttled_seconds += more_s
            self._in_flight = deque(
                each._replace(until_s=each.until_s + more_s) for each in self._in_flight
            )

    def next_correlation_id(self) -> int:
        """The next correlation id: positive, and wraps around."""
        self._last_correlation_id = self._last_correlation_id % _CORRELATION_ID_MAX + 1
        return self._last_correlation_id

    def version_of(self, api: Api, newest: int = NEVER) -> int:
        """The highest common version up to `newest`; `ApiError` UNSUPPORTED_VERSION if none is."""
        theirs = self.versions.get(api.key)
        if theirs is not None:
            common = min(api.newest, theirs.max_version, newest)
            if common >= max(api.oldest, theirs.min_version):
                return common
        raise ApiError(
            Error.UNSUPPORTED_VERSION, f"this client and {self.name} share no version of {api.name}"
        )

    async def negotiate(self) -> None:
        """Ask for the broker's API versions, for `version_of`.

        The answer may take as long as connecting. API keys 4 to 7 are not advertised; their senders
        (controller and brokers) pass the version themselves.
        """
        version = api_versions.API.newest
        answer = await self._ask_versions(version)
        if answer.error_code == Error.UNSUPPORTED_VERSION.code:  # KIP-511
            theirs = {each.api_key: each.max_version for each in answer.api_keys}
            answer = await self._ask_versions(min(version, theirs.get(api_versions.API.key, 0)))
        if answer.error_code:
            raise ApiError(Error.of(answer.error_code))
        self.versions = {each.api_key: each for each in answer.api_keys}

    async def _ask_versions(self, version: int) -> ApiVersionsResponse:
        request = ApiVersionsRequest(
            client_software_name="kdist",
            client_software_version=api_versions.named(self._settings.software_version),
        )
        answer = await self.send(request, version, self._greeting_limit_ms)
        return cast(ApiVersionsResponse, answer)

    @property
    def _greeting_limit_ms(self) -> float:
        """For what every broker answers at once: one that does not hangs, or is not a broker."""
        return min(self._settings.connect_timeout_ms, self._settings.request_timeout_ms)

    @property
    def _has_tls(self) -> bool:
        security = self._settings.security
        return security is not None and security.tls is not None

    # Who the client is

    async def _authenticate(self, sasl: Sasl) -> None:
        """Prove it, and plan to do so again before the session ends. Errors as `authenticate`."""
        try:
            renew_ms = await authenticate(sasl, self._ask_ahead, self.name)
        finally:
            self._send_held()
        if renew_ms and self.state is not CLOSED:
            self._renewal = self._loop.call_later(renew_ms / 1000, self._begin_renewal, sasl)

    def _begin_renewal(self, sasl: Sasl) -> None:
        self._renewing = self._loop.create_task(self._renew(sasl))

    async def _renew(self, sasl: Sasl) -> None:
        """Authenticate again. If that fails, what is in flight may be tried on a new connection,
        whose maker then learns why.
        """
        try:
            await self._authenticate(sasl)
        except ApiError as error:
            self._end(self._network_exception(f"authenticating again failed: {error.detail}"))

    def _ask_ahead(self, request: Any) -> asyncio.Future[Any]:
        """As `ask`, before all that is asked from now until `_send_held`.

        The first such request is answered after those in flight. By then no other has been sent.
        """
        if self.state is CLOSED:
            raise self._network_exception("the connection is closed")
        version, correlation_id = self.version_of(request.api), self.next_correlation_id()
        self._wire.write(self.encode(request, version, correlation_id))
        is_first = self._transport is self._wire
        now_s = self._loop.time()
        others_s = [each.until_s for each in self._in_flight] if is_first else []
        until_s = max([now_s, *others_s]) + self._greeting_limit_ms / 1000
        answered: asyncio.Future[Any] = self._loop.create_future()
        self._expect(
            InFlightRequest(correlation_id, request.api, version, answered, now_s, until_s)
        )
        if is_first:
            self._transport = HeldBack()
            self.pause_writing()
        else:
            self._in_flight.rotate(1)
        return answered

    def _send_held(self) -> None:
        held, self._transport = self._transport, self._wire
        if isinstance(held, HeldBack) and self.state is not CLOSED:
            for frame in held.frames:
                self._wire.write(frame)
            self.resume_writing()

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = self._transport = cast(asyncio.Transport, transport)
        if self._meter is not None:
            self._meter.broker.open_connections += 1

    def buffer_updated(self, nbytes: int) -> None:
        """As the base class, but opens no tick: `kept` copies what must outlive the receive."""
        if self._own is None:
            self.find_frames(self._tick.arena(), nbytes)
        else:
            super().buffer_updated(nbytes)

    def pause_writing(self) -> None:
        self._is_blocked = True

    def resume_writing(self) -> None:
        self._is_blocked = self._transport is not self._wire
        self._room_made.set()

    def connection_lost(self, exc: Exception | None) -> None:
        why = str(exc) if exc else "it closed the connection"
        if self._in_flight and self._in_flight[0].api is api_versions.API and not self._has_tls:
            why += " without an answer: does it speak TLS there (security.protocol)?"
        self._end(self._network_exception(why))

    # Answers

    def frame_received(self, frame: memoryview) -> None:
        if not self._in_flight:
            raise ProtocolError("an answer that nobody asked for")
        request = self._in_flight.popleft()
        self._room_made.set()
        try:
            correlation_id, _ = get_response_header(frame, 0)
            if correlation_id != request.correlation_id:
                raise ProtocolError(
                    f"an answer to {correlation_id} where {request.correlation_id} was next"
                )
            version = request.version
            if request.api is api_versions.API and frame[4:6] == _UNSUPPORTED:
                answer = _read_refusal(frame)
            else:
                _, answer = decode_response(request.api, version, self.kept(frame))
        except ProtocolError as error:
            self._fail(request, self._misunderstood(error))
            raise
        except BaseException:
            self._in_flight.appendleft(request)  # fails with the others when the connection ends
            raise
        if self._meter is not None:
            self._meter.answered(request.api.name, request.asked_s)
        if (throttle_ms := getattr(answer, "throttle_time_ms", 0)) > 0:
            self._note_throttle(throttle_ms / 1000)
        if not request.answered.done():
            request.answered.set_result(answer)

    def frame_refused(self, error: ProtocolError) -> None:
        self._end(self._misunderstood(error))

    # The end

    def _time_out(self, request: InFlightRequest) -> None:
        silent = "" if self.versions else "accepted the connection, but "
        why = f"{self.name} {silent}did not answer in time"
        _tell(request, ApiError(Error.REQUEST_TIMED_OUT, why))  # and counted as `_end` finds it
        self._end(self._network_exception("it did not answer an earlier request in time"))

    def _network_exception(self, why: str) -> ApiError:
        return ApiError(Error.NETWORK_EXCEPTION, f"{self.name}: {why}")

    def _misunderstood(self, error: ProtocolError) -> ApiError:
        """For bytes that cannot be decoded. Before it gave versions it may be no broker at all."""
        doubt = "" if self.versions else "it does not speak Kafka's protocol: "
        return self._network_exception(f"{doubt}{error}")

    def close(self) -> None:
        """Close at once; requests in flight fail with NETWORK_EXCEPTION."""
        self._end(self._network_exception("the connection was closed here"), is_lost=False)

    def _end(self, error: ApiError, *, is_lost: bool = True) -> None:
        if not self._enter(CLOSED):
            return
        if self._meter is not None:
            self._meter.broker.open_connections -= 1
            self._meter.broker.lost_connections += is_lost
        self.drop_received()
        self._wire.abort()
        self._room_made.set()
        for each in (self._timer, self._renewal, self._renewing):
            if each is not None:
                each.cancel()
        while self._in_flight:
            self._fail(self._in_flight.popleft(), error)

    def _fail(self, request: InFlightRequest, error: ApiError) -> None:
        """It is not in flight any more."""
        if self._meter is not None:
            self._meter.failed(request.api.name)
        _tell(request, error)


def _read_refusal(frame: memoryview) -> ApiVersionsResponse:
    """An ApiVersions answer that refuses the version: in version 0, whatever was asked (KIP-511).

    Some servers use another format; then the versions are asked for again, in version 0.
    """
    try:
        _, answer = decode_response(api_versions.API, 0, bytes(frame))
    except ProtocolError:
        return ApiVersionsResponse(error_code=Error.UNSUPPORTED_VERSION.code, api_keys=[])
    return cast(ApiVersionsResponse, answer)


def _tell(request: InFlightRequest, error: ApiError) -> None:
    if not request.answered.done():
        request.answered.set_exception(error)
