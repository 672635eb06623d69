"""The gate: who connects to a listener with SASL proves who it is before anything else is served.

    state       takes                           leaves for
    FIRST       ApiVersions                     HANDSHAKE; FIRST, if it was refused
                SaslHandshake                   RAW (v0), FRAMED (v1)
    HANDSHAKE   SaslHandshake                   RAW (v0), FRAMED (v1)
    RAW         tokens without header           PROVED
    FRAMED      SaslAuthenticate                PROVED
    PROVED      all APIs: the listener's own handler has the connection. A SaslHandshake begins
                again, if the session has an end (KIP-368): RAW, FRAMED

Whatever a state does not take closes the connection, unread. Only in FRAMED it is answered with
ILLEGAL_SASL_STATE, by an API whose answer has one error for all: what it asks for is not decoded.

A failure is answered, and its connection closed, after a delay that doubles with each one of its
address. A session ends on time: with requests that wait, and though a new proof is under way. How
long the first proof may take, and of how many peers at a time, says the listener (`Unproved`).

Source: Kafka's `SaslServerAuthenticator`, KIP-43, KIP-152, KIP-368. Kafka notices the end of a
session at the next request, and its delay is always the same.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kdist.broker.crashes import Crashes, error_response
from kdist.broker.dispatch import GeneralCall
from kdist.broker.handlers import api_versions
from kdist.errors import Error, ProtocolError
from kdist.metrics.broker import AuthenticationMetrics
from kdist.metrics.declare import Family
from kdist.model import Principal
from kdist.network.connection import Connection, Handler, ResponseSlot
from kdist.protocol import sasl_authenticate, sasl_handshake
from kdist.protocol.api_versions import ApiVersionsRequest
from kdist.protocol.frame import (
    SIZE_BYTES,
    UnsupportedVersionError,
    decode_request,
    encode_response,
    get_fixed_fields,
)
from kdist.protocol.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kdist.protocol.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kdist.protocol.versions import api_for
from kdist.runtime.clock import Clock
from kdist.security.sasl import Authenticated, AuthenticationFailed, ServerExchange
from kdist.wire.primitives import Buffer

logger = logging.getLogger(__name__)

VERSIONS, HANDSHAKE, AUTHENTICATE = (
    *(api_versions.KEY, sasl_handshake.API.key, sasl_authenticate.API.key),
)

_NO_MECHANISM = "none"  # in the metrics, of who has failed before it named one
_AGAIN_AFTER_S = 1.0  # as Kafka: no sooner may a session be renewed
_LINGER_S = 1.0  # how long a refused peer may take to read why
_ADDRESSES_MAX = 1000  # of which failures are remembered
_FORGET_AFTER_S = 60.0  # without another failure of the address
_DELAY_MAX_S = 4.0
_DOUBLED_MAX = 20  # times; the delay is at its bound before
_SHOWN_MAX = 40  # characters of a mechanism's name
_SENTENCE_EVERY_S = 60.0  # about one address
_TOO_LATE = "SaslAuthenticate request received after successful authentication"


class State(enum.Enum):
    """See the module's table."""

    FIRST = "first"
    HANDSHAKE = "handshake"
    RAW = "raw"
    FRAMED = "framed"
    PROVED = "proved"


_TAKES = {
    State.FIRST: (VERSIONS, HANDSHAKE),
    State.HANDSHAKE: (HANDSHAKE,),
    State.FRAMED: (AUTHENTICATE,),
}


class Mechanism(NamedTuple):
    """How a mechanism's exchanges begin; after `reauth_ms` who used it proves it again, if not 0.

    `reauth_ms` is `connections.max.reauth.ms`.
    """

    begin: Callable[[], ServerExchange]
    reauth_ms: int = 0


class GateSettings(NamedTuple):
    """A listener's mechanisms by name, and what peers may cost before it is known who they are.

    `is_for_brokers`: on this listener ApiVersions lists brokers' APIs, too. `frame_bytes_max` is
    `sasl.server.max.receive.size`, and `failed_delay_ms`
    `connection.failed.authentication.delay.ms`. How long the first proof may take says the listener
    (`network/unproved.py`); a renewal, the session that it renews.
    """

    mechanisms: Mapping[str, Mechanism]
    is_for_brokers: bool = False
    frame_bytes_max: int = 64 << 10
    failed_delay_ms: int = 100


class GateShared(NamedTuple):
    """What the gates of a broker's listeners share. `proofs` are by listener and mechanism."""

    clock: Clock
    crashes: Crashes
    proofs: Family[AuthenticationMetrics]


class Login:
    """How far a connection has come. Owner: the gate.

    `mechanism` and `exchange` are of the proof under way, or of the last; `name` is who it was.
    """

    __slots__ = ("begun_s", "end", "exchange", "mechanism", "name", "refusal", "state")

    def __init__(self) -> None:
        self.state = State.FIRST
        self.mechanism = ""
        self.exchange: ServerExchange | None = None
        self.name: str | None = None
        self.begun_s = 0.0
        self.refusal: asyncio.TimerHandle | None = None  # of its answer, then of its end
        self.end: asyncio.TimerHandle | None = None  # of the session


class Gate:
    """The `Handler` of a listener with SASL. Owner: the broker.

    `inner` handles the requests of who has authenticated, and knows of no other connections.
    """

    def __init__(
        self, listener: str, inner: Handler, settings: GateSettings, shared: GateShared
    ) -> None:
        self._listener = listener
        self._inner = inner
        self._settings = settings
        self._shared = shared
        self._failures = Failures(settings.failed_delay_ms / 1000)
        self._logins: dict[Connection, Login] = {}
        self._users: dict[tuple[str, str], set[Connection]] = {}  # by mechanism and name

    # Connections

    def on_connect(self, connection: Connection) -> None:
        """As of `Handler`; `inner` is told once the peer has authenticated."""
        self._logins[connection] = Login()
        connection.take_frames(self.on_frame, self._settings.frame_bytes_max)

    def on_disconnect(self, connection: Connection) -> None:
        """As of `Handler`."""
        login = self._logins.pop(connection)
        for timer in (login.refusal, login.end):
            if timer is not None:
                timer.cancel()
        if login.name is not None:
            self._forget_user(connection, login)
            self._inner.on_disconnect(connection)

    def disconnect(self, mechanism: str, name: str) -> None:
        """End the connections of a user whose credential for the mechanism is gone."""
        for connection in list(self._users.get((mechanism, name), ())):
            logger.info("closing the connection of %s: user %r is revoked", connection.peer, name)
            connection.abort()
        for connection, login in list(self._logins.items()):
            # Its exchange may have read the credential before.
            if login.name is None and login.exchange is not None and login.mechanism == mechanism:
                connection.abort()

    # Frames

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        """A frame of a proof. As of `Handler`."""
        login = self._logins[connection]
        try:
            if login.state is State.RAW:
                self._take_raw(connection, login, bytes(frame))
            else:
                self._take_request(connection, login, frame)
        except ProtocolError as error:
            self._fail(connection, login, None, str(error))
        except Exception as error:  # noqa: BLE001 - `Crashes` says what it costs
            self._shared.crashes.meet(error, AUTHENTICATE, connection)

    def _take_request(self, connection: Connection, login: Login, frame: memoryview) -> None:
        key, version, correlation_id = get_fixed_fields(frame)
        if key not in _TAKES[login.state]:
            if login.state is not State.FRAMED:
                raise ProtocolError(f"a request with API key {key} before authentication")
            self._refuse_other(connection, login, key, version, correlation_id)
            return
        try:
            header, request = decode_request(frame)
        except UnsupportedVersionError:
            if key != VERSIONS:
                raise
            refusal = encode_response(0, correlation_id, api_versions.unsupported())
            connection.answer_at_once(refusal)
            return
        send = Answer(connection, header.api_version, correlation_id)
        match request:
            case ApiVersionsRequest():
                self._tell_versions(login, request, send)
            case SaslHandshakeRequest():
                self._begin(connection, login, request, send)
            case SaslAuthenticateRequest():
                self._take_framed(connection, login, request, send)

    def _refuse_other(
        self, connection: Connection, login: Login, key: int, version: int, correlation_id: int
    ) -> None:
        api = api_for(key)
        if not api.has(version):
            raise ProtocolError(f"{api.name} in an unknown version before authentication")
        response = error_response(api, version, Error.ILLEGAL_SASL_STATE)
        answer = None if response is None else encode_response(version, correlation_id, response)
        self._fail(connection, login, answer, f"sent {api.name} before it had authenticated")

    def _tell_versions(self, login: Login, request: ApiVersionsRequest, send: Answer) -> None:
        response = api_versions.answer(
            request, send.version, to_brokers=self._settings.is_for_brokers
        )
        if response.error_code == Error.NONE:
            login.state = State.HANDSHAKE
        send(response)

    def _begin(
        self, connection: Connection, login: Login, request: SaslHandshakeRequest, send: Answer
    ) -> None:
        names = list(self._settings.mechanisms)
        if request.mechanism in self._settings.mechanisms:
            self._begin_exchange(login, request.mechanism, send.version)
            send(SaslHandshakeResponse(error_code=Error.NONE, mechanisms=names))
            return
        code = Error.UNSUPPORTED_SASL_MECHANISM
        refusal = send.encoded(SaslHandshakeResponse(error_code=code, mechanisms=names))
        self._fail(connection, login, refusal, f"asked for {request.mechanism[:_SHOWN_MAX]!r}")

    def _begin_exchange(self, login: Login, mechanism: str, version: int) -> None:
        """Of a mechanism that a SaslHandshake of this version names."""
        login.mechanism = mechanism
        login.exchange = self._settings.mechanisms[mechanism].begin()
        login.begun_s = asyncio.get_running_loop().time()
        login.state = State.FRAMED if version else State.RAW

    def _take_framed(
        self, connection: Connection, login: Login, request: SaslAuthenticateRequest, send: Answer
    ) -> None:
        try:
            challenge, proved = self._respond(login, request.auth_bytes)
        except AuthenticationFailed as error:
            code = Error.SASL_AUTHENTICATION_FAILED
            refusal = SaslAuthenticateResponse(
                error_code=code, error_message=str(error), auth_bytes=b""
            )
            self._fail(connection, login, send.encoded(refusal), error.detail)
            return
        lifetime_ms = None if proved is None else self._lifetime_ms(login, proved)
        send(
            SaslAuthenticateResponse(
                error_code=Error.NONE,
                auth_bytes=challenge,
                session_lifetime_ms=max(0, lifetime_ms or 0),
            )
        )
        if proved is not None:
            self._admit(connection, login, proved, lifetime_ms)

    def _take_raw(self, connection: Connection, login: Login, token: bytes) -> None:
        try:
            challenge, proved = self._respond(login, token)
        except AuthenticationFailed as error:
            self._fail(connection, login, None, error.detail)
            return
        connection.answer_at_once(len(challenge).to_bytes(SIZE_BYTES, "big") + challenge)
        if proved is not None:
            self._admit(connection, login, proved, self._lifetime_ms(login, proved))

    def _respond(self, login: Login, token: bytes) -> tuple[bytes, Authenticated | None]:
        assert login.exchange is not None, "a mechanism was named"
        challenge, proved = login.exchange.respond(token)
        if proved is not None and login.name not in (None, proved.name):
            told = "Cannot change principals during re-authentication"
            raise AuthenticationFailed(told, f"{told}: from {login.name!r} to {proved.name!r}")
        return challenge, proved

    # The outcome

    def _lifetime_ms(self, login: Login, proved: Authenticated) -> int | None:
        """How long the session lasts; below 0 if the credential has expired, None: no end."""
        ends = []
        if reauth_ms := self._settings.mechanisms[login.mechanism].reauth_ms:
            ends.append(reauth_ms)
        if proved.expires_ms is not None:
            ends.append(proved.expires_ms - self._shared.clock.now_ms())
        return min(ends, default=None)

    def _admit(
        self, connection: Connection, login: Login, proved: Authenticated, lifetime_ms: int | None
    ) -> None:
        """The one place that says who sends on a connection."""
        is_first = login.name is None
        login.state, login.exchange, login.name = State.PROVED, None, proved.name
        if login.end is not None:
            login.end.cancel()
        login.end = None
        if lifetime_ms is not None:
            loop = asyncio.get_running_loop()
            login.end = loop.call_later(lifetime_ms / 1000, self._expire, connection)
        metrics = self._shared.proofs[(self._listener, login.mechanism)]
        connection.take_frames(self._inner.on_frame)
        if not is_first:
            metrics.renewed += 1
            return
        metrics.succeeded += 1
        self._users.setdefault((login.mechanism, proved.name), set()).add(connection)
        connection.principal = Principal("User", proved.name)
        connection.context = None
        self._inner.on_connect(connection)

    def _fail(
        self, connection: Connection, login: Login, answer: Buffer | None, detail: str
    ) -> None:
        """Answer, if there is an answer, and close, but not yet."""
        mechanism = login.mechanism or _NO_MECHANISM
        self._shared.proofs[(self._listener, mechanism)].failed += 1
        loop = asyncio.get_running_loop()
        delay_s, is_told = self._failures.note(connection.host, loop.time())
        if is_told:
            logger.warning(
                "%s does not authenticate on %s by %s: %s",
                *(connection.peer, self._listener, mechanism, detail),
            )
        login.exchange = None
        slot = connection.reserve()
        connection.finish()
        login.refusal = loop.call_later(delay_s, self._tell, connection, login, slot, answer)

    def _tell(
        self, connection: Connection, login: Login, slot: ResponseSlot, answer: Buffer | None
    ) -> None:
        if answer is None:
            slot.discard()
        else:
            slot.send((answer,))
        login.refusal = asyncio.get_running_loop().call_later(_LINGER_S, connection.abort)

    def _expire(self, connection: Connection) -> None:
        login = self._logins[connection]
        logger.info("closing the connection of %s: its session has ended", connection.peer)
        self._shared.proofs[(self._listener, login.mechanism)].expired += 1
        connection.close()

    def _forget_user(self, connection: Connection, login: Login) -> None:
        key = login.mechanism, login.name or ""
        of_user = self._users[key]
        of_user.discard(connection)
        if not of_user:
            del self._users[key]

    # Again

    def begin_again(self, request: SaslHandshakeRequest, call: GeneralCall) -> None:
        """A peer that has authenticated would renew its session: serve nothing else until then.

        ILLEGAL_SASL_STATE if the session has no end, or has just begun; with another mechanism the
        connection is closed, too.
        """
        connection = call.connection
        login = self._logins[connection]
        now_s = asyncio.get_running_loop().time()
        if login.end is None or now_s - login.begun_s < _AGAIN_AFTER_S:
            call.answer_with_error(_not_now())
        elif request.mechanism != login.mechanism:
            call.answer_with_error(_not_now())
            connection.finish_soon()
        else:
            connection.take_frames(self.on_frame)
            self._begin_exchange(login, request.mechanism, call.version)
            names = list(self._settings.mechanisms)
            call.answer(SaslHandshakeResponse(error_code=Error.NONE, mechanisms=names))


class Answer:
    """Sends, or only encodes, the response to a request of this version."""

    __slots__ = ("_connection", "_correlation_id", "version")

    def __init__(self, connection: Connection, version: int, correlation_id: int) -> None:
        self._connection = connection
        self.version = version
        self._correlation_id = correlation_id

    def __call__(self, response: Any) -> None:
        self._connection.answer_at_once(self.encoded(response))

    def encoded(self, response: Any) -> Buffer:
        return encode_response(self.version, self._correlation_id, response)


class Failed(NamedTuple):
    """The failures of an address: how many, and when the last was and when the log said so."""

    attempts: int
    last_s: float
    told_s: float


class Failures:
    """The addresses that have failed, the latest last. Owner: the gate."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._of: dict[str, Failed] = {}

    def note(self, host: str, now_s: float) -> tuple[float, bool]:
        """Count one: for how long its answer waits, and whether the log is to tell of it."""
        before = self._of.pop(host, None)
        if before is None or now_s - before.last_s > _FORGET_AFTER_S:
            before = Failed(0, now_s, -math.inf)
        if len(self._of) >= _ADDRESSES_MAX:
            del self._of[next(iter(self._of))]
        is_told = now_s - before.told_s >= _SENTENCE_EVERY_S
        self._of[host] = Failed(before.attempts + 1, now_s, now_s if is_told else before.told_s)
        delay_s = self._delay_s * 2 ** min(before.attempts, _DOUBLED_MAX)
        return min(delay_s, max(self._delay_s, _DELAY_MAX_S)), is_told


# The handlers of the two APIs for who is served already


def handshake(request: SaslHandshakeRequest, call: GeneralCall) -> None:
    """SaslHandshake of a peer that has authenticated, or on a listener without SASL."""
    gate = call.connection.handler
    if isinstance(gate, Gate):
        gate.begin_again(request, call)
    else:
        call.answer_with_error(_not_now())


def authenticate(_request: SaslAuthenticateRequest, call: GeneralCall) -> None:
    """SaslAuthenticate of such a peer, which is never in its place."""
    call.answer_with_error(
        SaslAuthenticateResponse(
            error_code=Error.ILLEGAL_SASL_STATE, error_message=_TOO_LATE, auth_bytes=b""
        )
    )


def _not_now() -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=Error.ILLEGAL_SASL_STATE, mechanisms=[])
