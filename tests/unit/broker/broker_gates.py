"""A broker with a listener for who authenticates, by mechanisms that tests write; and its peers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any
from unittest import mock

from kdist.broker.authentication import Gate, GateSettings, GateShared, Mechanism
from kdist.broker.broker import Broker
from kdist.broker.gateway import Gateway
from kdist.broker.service import Service
from kdist.errors import Error
from kdist.metrics.broker import AuthenticationMetrics
from kdist.network.connection import Handler
from kdist.network.unproved import UnprovedLimits
from kdist.protocol.frame import RequestHeader, decode_response, encode_request
from kdist.protocol.heartbeat import HeartbeatRequest
from kdist.protocol.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kdist.protocol.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kdist.security.sasl import Authenticated, AuthenticationFailed
from kdist.security.scram import ScramServer, new_credential
from tests.simulator.cluster import PORT, Cluster
from tests.unit.network.network_world import RawPeer

CLEAR, SECURE = "CLEAR", "SECURE"
SECURE_PORT = PORT + 1
SETTINGS = {
    "listeners": f"{CLEAR}://:{PORT},{SECURE}://:{SECURE_PORT}",
    "listener.security.protocol.map": f"{CLEAR}:PLAINTEXT,{SECURE}:PLAINTEXT",
}


class Word:
    """Proves who says `name` or `name until <unix ms>`; `more` is a message of several."""

    def respond(self, message: bytes) -> tuple[bytes, Authenticated | None]:
        name, _, until = message.decode().partition(" until ")
        if name == "more":
            return b"go on", None
        if name == "bug":
            raise ValueError(name)
        if name == "wrong":
            raise AuthenticationFailed("wrong word", "said wrong")
        return b"", Authenticated(name, int(until) if until else None)


class Gated(Cluster):
    """A broker; on its port SECURE_PORT peers have to authenticate."""

    gate: Gate
    inner: Handler

    def __init__(
        self,
        mechanisms: Mapping[str, Mechanism] = MappingProxyType({"WORD": Mechanism(Word)}),
        unproved: UnprovedLimits = UnprovedLimits(),  # noqa: B008 - a tuple
        **settings: Any,
    ) -> None:
        super().__init__(settings=SETTINGS)
        self.unproved = unproved
        self.gate_settings = GateSettings(mechanisms, **settings)
        self.peers = 0

    def handler_of(
        self, serve: Callable[[Service, str], Handler], service: Service, name: str
    ) -> Any:
        inner = serve(service, name)
        if name != SECURE:
            return inner
        shared = service._shared
        measures = service._measures
        self.inner = inner
        self.gate = Gate(
            name,
            inner,
            self.gate_settings,
            GateShared(shared.clock, shared.crashes, measures.proofs),
        )
        return self.gate

    async def opened(self) -> Broker:
        serve = Service.handler
        handler_of = functools.partialmethod(_handler_of, self, serve)
        with (
            mock.patch.object(Service, "handler", handler_of),
            mock.patch.object(Gateway, "_unproved", self._unproved),
        ):
            return await self.started()

    def _unproved(self, listener: str) -> UnprovedLimits | None:
        return self.unproved if listener == SECURE else None

    def proofs(self, mechanism: str = "WORD") -> AuthenticationMetrics:
        return self.brokers[1].measures.proofs[(SECURE, mechanism)]

    async def peer(self, port: int = SECURE_PORT, host: str = "peer") -> Peer:
        return await self.network.host(host).connect(Peer, "m1", port)


def _handler_of(
    service: Service, cluster: Gated, serve: Callable[[Service, str], Handler], name: str
) -> Any:
    return cluster.handler_of(serve, service, name)


class Peer(RawPeer):
    """A connection that sends requests and reads answers one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        self.read = 0

    def send_request(self, request: Any, version: int) -> None:
        self.sent += 1
        header = RequestHeader(request.api.key, version, self.sent, "peer")
        self.transport.write(bytes(encode_request(header, request)))

    async def frame(self) -> bytes | None:
        """The next frame; None if the connection ends before."""
        while len(self.frames()) <= self.read:
            if self.is_closed:
                return None
            await asyncio.sleep(0.001)
        self.read += 1
        return self.frames()[self.read - 1]

    async def ask(self, request: Any, version: int) -> Any:
        """The response; None if the connection ends instead."""
        self.send_request(request, version)
        return await self.response(request, version)

    async def response(self, request: Any, version: int) -> Any:
        frame = await self.frame()
        return None if frame is None else decode_response(request.api, version, frame)[1]

    async def handshake(self, mechanism: str = "WORD", version: int = 1) -> SaslHandshakeResponse:
        answer = await self.ask(SaslHandshakeRequest(mechanism=mechanism), version)
        assert isinstance(answer, SaslHandshakeResponse)
        return answer

    async def say(self, word: str, version: int = 2) -> SaslAuthenticateResponse:
        answer = await self.ask(SaslAuthenticateRequest(auth_bytes=word.encode()), version)
        assert isinstance(answer, SaslAuthenticateResponse)
        return answer

    async def prove(self, word: str = "alice") -> SaslAuthenticateResponse:
        """Authenticate, or begin again."""
        assert (await self.handshake()).error_code == Error.NONE
        return await self.say(word)

    async def is_served(self) -> bool:
        """Whether a request of another API is answered."""
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        return await self.ask(request, 3) is not None


_CREDENTIAL = new_credential("SCRAM-SHA-256", "secret", b"salt")


def scram() -> ScramServer:
    """An exchange of a server that knows alice, whose password is secret."""
    known = {"alice": _CREDENTIAL}
    return ScramServer("SCRAM-SHA-256", known.get, "a-nonce-of-the-server", b"cluster")
