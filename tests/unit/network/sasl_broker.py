"""A broker that asks who a client is, for the tests of the client's connection."""

from __future__ import annotations

from collections.abc import Callable

from network_broker import Broker

from kdist.errors import Error
from kdist.network.connection import Connection
from kdist.protocol import api_versions
from kdist.protocol.frame import decode_request, encode_response
from kdist.protocol.sasl_authenticate import SaslAuthenticateResponse
from kdist.protocol.sasl_handshake import SaslHandshakeResponse
from kdist.security.sasl import AuthenticationFailed, ServerExchange


class SaslBroker(Broker):
    """Takes one mechanism. What comes between an exchange's requests, or too early, is refused."""

    def __init__(
        self, mechanism: str, make: Callable[[], ServerExchange], session_ms: int = 0
    ) -> None:
        super().__init__()
        self._mechanism = mechanism
        self._make = make
        self._session_ms = session_ms
        self._exchange: ServerExchange | None = None
        self.names: list[str] = []  # of each completed authentication
        self.intruders: list[int] = []  # API keys

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        key = int.from_bytes(frame[:2], "big")
        if key in (17, 36):
            header, request = decode_request(frame)
            self.keys.append((key, header.api_version))
            answer = self._handshake(request) if key == 17 else self._authenticate(request)
            encoded = encode_response(header.api_version, header.correlation_id, answer)
            connection.reserve().send((encoded,))
            return
        is_early = self._exchange is not None or not self.names
        if is_early and key != api_versions.API.key:
            self.intruders.append(key)
        super().on_frame(connection, frame)

    def _handshake(self, request: object) -> SaslHandshakeResponse:
        has_it = getattr(request, "mechanism", None) == self._mechanism
        self._exchange = self._make() if has_it else None
        code = Error.NONE if has_it else Error.UNSUPPORTED_SASL_MECHANISM
        return SaslHandshakeResponse(error_code=code.code, mechanisms=[self._mechanism])

    def _authenticate(self, request: object) -> SaslAuthenticateResponse:
        assert self._exchange is not None
        try:
            message, authenticated = self._exchange.respond(getattr(request, "auth_bytes", b""))
        except AuthenticationFailed as error:
            return SaslAuthenticateResponse(
                error_code=Error.SASL_AUTHENTICATION_FAILED.code,
                error_message=str(error),
                auth_bytes=b"",
            )
        if authenticated is not None:
            self.names.append(authenticated.name)
            self._exchange = None
        return SaslAuthenticateResponse(
            error_code=0,
            auth_bytes=message,
            session_lifetime_ms=self._session_ms if authenticated else 0,
        )
