"""Both networks behind one interface, a handler that tests control, and a peer of raw bytes."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import ssl
import struct
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from kdist.config.network import NetworkSettings
from kdist.errors import ProtocolError
from kdist.metrics.broker import NetworkMetrics
from kdist.network.connection import Connection, ResponseSlot
from kdist.network.listener import Bounds, Listener
from kdist.network.network import (
    CLIENT_PATIENCE,
    AsyncioNetwork,
    Network,
    Patience,
    Server,
    SocketOptions,
)
from kdist.network.tls import ClientTls, ServerTls
from kdist.runtime.process import AsyncioProcess, Process
from kdist.runtime.tick_loop import TickLoop
from kdist.testing.simulated_network import SimulatedNetwork
from kdist.testing.simulated_transport import Conditions
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from kdist.testing.virtual_process import VirtualProcess
from tests.certificates import client_context, server_context

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.BaseProtocol)
WAIT_S = 20


class World:
    """A server's network and a client's, and the loop of both."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, server: Network, client: Network, host: str
    ) -> None:
        self.loop = loop
        self.server = server
        self.client = client
        self.host = host
        self.raised: list[BaseException] = []  # on a real loop

    def process(self) -> Process:
        """What serves; what it raises fails the test."""
        if isinstance(self.loop, VirtualLoop):
            return VirtualProcess(self.loop, random.Random(1))
        process = AsyncioProcess(self.loop)
        process.on_failure = self.raised.append
        return process

    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        """Run to the end; what a callback raises fails the test."""
        if not isinstance(self.loop, VirtualLoop):
            self.loop.set_exception_handler(
                lambda _loop, context: self.raised.append(
                    context.get("exception") or RuntimeError(context["message"])
                )
            )
        found = self.loop.run_until_complete(asyncio.wait_for(scenario, WAIT_S))
        if self.raised:
            raise self.raised[0]
        return found


class TlsNetwork:
    """Another network, all of whose connections have TLS."""

    def __init__(
        self,
        below: Network,
        server: ssl.SSLContext | None = None,
        client: ssl.SSLContext | None = None,
    ) -> None:
        self._below = below
        self.loop = below.loop
        self.tick = below.tick
        self.server_context = server or server_context()
        self.client_context = client or client_context()
        self.bounds: dict[str, int] = {}  # of a server
        self.began_s = time.time() - below.loop.time()

    def now_ms(self) -> int:
        return int((self.began_s + self.loop.time()) * 1000)

    async def listen(
        self,
        make: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        options: SocketOptions = SocketOptions(),  # noqa: B008 - a tuple
        wait_s: Callable[[], float] = float,
        tls: ServerTls | None = None,
    ) -> Server:
        tls = ServerTls(lambda: self.server_context, self.now_ms, **self.bounds)
        return await self._below.listen(make, host, port, options, wait_s, tls)

    async def connect(
        self,
        make: Callable[[], P],
        host: str,
        port: int,
        patience: Patience = CLIENT_PATIENCE,
        tls: ClientTls | None = None,
    ) -> P:
        tls = ClientTls(lambda: self.client_context, self.now_ms)
        return await self._below.connect(make, host, port, patience, tls)

    async def connect_in_clear(self, make: Callable[[], P], host: str, port: int) -> P:
        """A peer that does not speak TLS."""
        return await self._below.connect(make, host, port)


def tls_world() -> Iterator[World]:
    yield from map(_with_tls, turning_world())


def simulated_tls_world(seed: int = 1, conditions: Conditions | None = None) -> Iterator[World]:
    yield from map(_with_tls, simulated_world(seed, conditions))


def _with_tls(world: World) -> World:
    client = TlsNetwork(world.client)
    server = client if world.server is world.client else TlsNetwork(world.server)
    world.server, world.client = server, client
    return world


def turning_world() -> Iterator[World]:
    yield from real_world(TickLoop())


def real_world(loop: asyncio.AbstractEventLoop | None = None) -> Iterator[World]:
    loop = loop or asyncio.new_event_loop()
    network = AsyncioNetwork(loop)
    yield World(loop, network, network, "127.0.0.1")
    loop.close()


def simulated_world(seed: int = 1, conditions: Conditions | None = None) -> Iterator[World]:
    loop = VirtualLoop(VirtualClock())
    network = SimulatedNetwork(loop, random.Random(seed), conditions or Conditions())
    yield World(loop, network.host("server"), network.host("client"), "server")
    loop.close()


WORLDS: dict[str, Callable[[], Iterator[World]]] = {
    "real": real_world,
    "tick loop": turning_world,
    "simulated": simulated_world,
    "TLS": tls_world,
    "simulated TLS": simulated_tls_world,
}


async def until(condition: Callable[[], bool]) -> None:
    """Wait, for at most 30 s, until `condition` holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 30
    while not condition():
        assert loop.time() < deadline, "it never came true"
        await asyncio.sleep(0.001)


def framed(content: bytes) -> bytes:
    """A frame as it is on the wire."""
    return struct.pack(">i", len(content)) + content


class Answering:
    """Answers each request with its own content, as `when` says.

    `parked` keeps the replies of requests that begin with `b"park"`; `b"bad"` is refused.
    """

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.connected: list[Connection] = []
        self.lost: list[Connection] = []
        self.parked: list[tuple[ResponseSlot, bytes]] = []

    def on_connect(self, connection: Connection) -> None:
        self.connected.append(connection)

    def on_disconnect(self, connection: Connection) -> None:
        self.lost.append(connection)

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        content = bytes(frame)
        self.seen.append(content)
        if content.startswith(b"bad"):
            raise ProtocolError("a bad request")
        if content.startswith(b"park"):
            self.parked.append((connection.reserve(), content))
        elif content.startswith(b"quiet"):
            connection.reserve().discard()
        else:
            connection.answer_at_once(framed(content))


class Served:
    """A listener with its handler and metrics, and its port."""

    def __init__(
        self,
        world: World,
        handler: Any = None,
        bounds: Bounds | None = None,
        **settings: Any,
    ) -> None:
        self.world = world
        self.handler = handler or Answering()
        self.metrics = NetworkMetrics()
        self._process = world.process()
        self.listener = Listener(
            world.server,
            self.handler,
            NetworkSettings(**settings),
            self.metrics,
            self._process,
            bounds,
        )
        self.port = 0

    async def __aenter__(self) -> Served:
        self.port = await self.listener.listen(self.world.host, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.listener.close(drain_ms=10)
        self._process.close()

    async def peer(self) -> RawPeer:
        """A new connection."""
        return await self.world.client.connect(RawPeer, self.world.host, self.port)


class RawPeer(asyncio.BufferedProtocol):
    """A client that sends any bytes and keeps what it receives."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_closed = False
        self._space = bytearray(1 << 16)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._space[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True

    def send(self, *contents: bytes) -> None:
        """Send frames."""
        self.transport.write(b"".join(map(framed, contents)))

    def end_sending(self) -> None:
        """Send no more, but go on receiving. Nothing that was sent is left in the transport."""
        connected = self.transport.get_extra_info("socket")
        if connected is None:
            getattr(self.transport, "_below", self.transport).write_eof()
        else:
            connected.shutdown(socket.SHUT_WR)

    def ends(self) -> list[int]:
        """Where the complete frames received so far end."""
        found, start = [], 0
        while start + 4 <= len(self.received):
            (size,) = struct.unpack_from(">i", self.received, start)
            start += 4 + size
            if start <= len(self.received):
                found.append(start)
        return found

    def frames(self) -> list[bytes]:
        """The complete frames received so far."""
        starts = [0, *self.ends()]
        return [bytes(self.received[start + 4 : end]) for start, end in itertools.pairwise(starts)]

    async def answers(self, count: int) -> list[bytes]:
        """Wait for `count` frames, and return all received."""
        await until(lambda: len(self.ends()) >= count)
        return self.frames()

    async def closed(self) -> None:
        """Wait until the server has closed the connection."""
        await until(lambda: self.is_closed)
