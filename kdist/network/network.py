"""The network that is passed in: listening and connecting, on real sockets or in a simulation.

`AsyncioNetwork` uses the machine's sockets; `kdist.testing` has a network in memory that delays,
resets and partitions. Both pass `tests/unit/network/test_network_contract.py`. Both use asyncio's
transport and protocol interfaces, and hold the `Tick` that their connections share.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from kdist.errors import UserError
from kdist.network.socket_transport import SocketTransport, begin_unpaced
from kdist.network.tick import Tick
from kdist.network.tls import ClientTls, Handshakes, ServerTls, TlsTransport
from kdist.runtime.tick_loop import READABLE, watch

logger = logging.getLogger(__name__)

P = TypeVar("P", bound=asyncio.BaseProtocol)

NEXT_ADDRESS_S = 0.25  # how long one address may be silent until the next one is tried too
_ACCEPTED_AT_ONCE_MAX = 32  # of a burst of connections: then those that are open are served
_ACCEPT_PAUSE_S = 1.0
_SENTENCE_EVERY_S = 30.0


class SocketOptions(NamedTuple):
    """For the connections that a listener accepts; a buffer of -1 has the kernel's default size."""

    backlog: int = 50
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1


class Patience(NamedTuple):
    """When a connection that was made to another host counts as dead, all in seconds.

    After `silent_s` without a byte the kernel probes the peer every `probe_s`; after `probes` that
    are not acknowledged the connection ends. `connect_s`: how long to wait for the answer of one
    address, and then also how long for what was sent to be acknowledged; None: as the kernel does.
    """

    silent_s: int = 20
    probe_s: int = 5
    probes: int = 4
    connect_s: int | None = None

    @property
    def dead_s(self) -> int:
        """How long after its last byte a dead host is noticed."""
        return self.silent_s + self.probes * self.probe_s


CLIENT_PATIENCE = Patience()
# The kernel sends again what a cut link has lost at ever longer intervals, and goes on as late
# after the cut as that has lasted. Fetches are answered twice a second: silence tells of a cut.
FETCHER_PATIENCE = Patience(silent_s=1, probe_s=1, probes=2, connect_s=1)


class Server(Protocol):
    """An address that is listened on."""

    @property
    def port(self) -> int:
        """The port; if 0 was asked for, the one that the kernel chose."""
        ...

    def close(self) -> None:
        """Stop accepting. Connections accepted before stay open."""
        ...


class Network(Protocol):
    """One host's network, with one event loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that calls the protocols."""
        ...

    @property
    def tick(self) -> Tick:
        """The ticks of that loop, shared by all connections."""
        ...

    async def listen(
        self,
        make: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        options: SocketOptions = SocketOptions(),  # noqa: B008 - a tuple
        wait_s: Callable[[], float] = float,
        tls: ServerTls | None = None,
    ) -> Server:
        """Accept connections; an empty host is every address. `UserError` if it cannot listen.

        `wait_s` is asked before each how long it has to wait. What is made, and how it may be
        called before the handshake: see `TlsTransport`.
        """
        ...

    async def connect(
        self,
        make: Callable[[], P],
        host: str,
        port: int,
        patience: Patience = CLIENT_PATIENCE,
        tls: ClientTls | None = None,
    ) -> P:
        """Connect, and return the connected protocol. `OSError` if nobody answers.

        `TlsFailed`, which is one, if the handshake fails.
        """
        ...


class AsyncioNetwork:
    """The machine's network."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.tick = Tick(loop)

    async def listen(
        self,
        make: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        options: SocketOptions = SocketOptions(),  # noqa: B008 - a tuple
        wait_s: Callable[[], float] = float,
        tls: ServerTls | None = None,
    ) -> Server:
        sockets: list[socket.socket] = []
        try:
            bound = await self.loop.create_server(
                make, host or None, port, reuse_address=True, start_serving=False
            )
            sockets.extend(each.dup() for each in bound.sockets)
            bound.close()
            _listen(sockets, options)
        except OSError as error:
            for each in sockets:
                each.close()
            raise UserError(_sentence(error, host, port)) from error
        return Accepting(self.loop, sockets, encrypting(make, tls, self), wait_s)

    async def connect(
        self,
        make: Callable[[], P],
        host: str,
        port: int,
        patience: Patience = CLIENT_PATIENCE,
        tls: ClientTls | None = None,
    ) -> P:
        connected = await _connected(self.loop, host, port, patience)
        protocol = make()
        if tls is None:
            SocketTransport(self.loop, connected, connected.getpeername(), protocol)
        else:
            transport = TlsTransport(protocol, tls, self.tick, self.loop, host)
            SocketTransport(self.loop, connected, connected.getpeername(), transport)
            await transport.ready()
        return protocol


def encrypting(
    make: Callable[[], asyncio.BaseProtocol], tls: ServerTls | None, network: Network
) -> Callable[[], asyncio.BaseProtocol]:
    """What makes the protocol of a connection that a listener accepts."""
    if tls is None:
        return make
    handshakes = Handshakes(tls)
    return lambda: TlsTransport(make(), tls, network.tick, network.loop, handshakes=handshakes)


class Accepting:
    """A server on listening sockets, which it closes. Owner: the loop.

    When the process runs out of descriptors, new connections wait in the kernel's backlog:
    accepting pauses for a second, and the log gets a line every half minute at most, not one per
    attempt.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: Sequence[socket.socket],
        make: Callable[[], asyncio.BaseProtocol],
        wait_s: Callable[[], float],
    ) -> None:
        self._loop = loop
        self._sockets = sockets
        self._make = make
        self._wait_s = wait_s
        self._pause: asyncio.TimerHandle | None = None
        self._next_sentence_s = -_SENTENCE_EVERY_S
        self.port: int = sockets[0].getsockname()[1]
        self._watch(READABLE)

    def _watch(self, events: int) -> None:
        for listening in self._sockets:
            watch(self._loop, listening.fileno(), events, partial(self._accept, listening))

    def _accept(self, listening: socket.socket, _events: int) -> None:
        for _ in range(_ACCEPTED_AT_ONCE_MAX):
            if (wait_s := self._wait_s()) > 0:
                self._rest(wait_s)
                return
            try:
                connected, address = listening.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue  # the peer gave up before it was accepted
            except OSError as error:
                self._rest(_ACCEPT_PAUSE_S)
                self._tell(error)
                return
            connected.setblocking(False)
            SocketTransport(self._loop, connected, address, self._make())

    def _rest(self, seconds: float) -> None:
        self._watch(0)
        self._pause = self._loop.call_later(seconds, self._watch, READABLE)

    def _tell(self, error: OSError) -> None:
        if self._loop.time() >= self._next_sentence_s:
            self._next_sentence_s = self._loop.time() + _SENTENCE_EVERY_S
            logger.error("cannot accept connections on port %d: %s", self.port, error.strerror)

    def close(self) -> None:
        """Stop accepting. Connections accepted before stay open."""
        self._watch(0)
        if self._pause is not None:
            self._pause.cancel()
        for listening in self._sockets:
            listening.close()


def _listen(sockets: Sequence[socket.socket], options: SocketOptions) -> None:
    for listening in sockets:
        # Accepted sockets inherit these options. Buffer sizes must be set before `listen`, as the
        # window scale is fixed in the handshake.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        begin_unpaced(listening)
        for option, size in (
            (socket.SO_SNDBUF, options.send_buffer_bytes),
            (socket.SO_RCVBUF, options.receive_buffer_bytes),
        ):
            if size >= 0:
                listening.setsockopt(socket.SOL_SOCKET, option, size)
        listening.listen(options.backlog)


async def _connected(
    loop: asyncio.AbstractEventLoop, host: str, port: int, patience: Patience
) -> socket.socket:
    """A socket to the host's first address that answers; the last `OSError` if none does.

    An address may be silent for minutes, and the caller's patience end before: the next one is
    tried beside it after a moment, as in RFC 8305.
    """
    refused = OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
    left = deque(await _addresses(loop, host, port))
    attempts: set[asyncio.Task[socket.socket]] = set()
    try:
        while left or attempts:
            if left:
                attempts.add(loop.create_task(_connected_to(loop, left.popleft(), patience)))
            done, _ = await asyncio.wait(
                attempts,
                timeout=NEXT_ADDRESS_S if left else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            attempt = next(iter(done), None)
            if attempt is not None:
                attempts.discard(attempt)
                try:
                    return attempt.result()
                except OSError as error:
                    refused = error
        raise refused
    finally:
        for each in attempts:
            each.cancel()
            each.add_done_callback(_close_unused)


def _close_unused(attempt: asyncio.Task[socket.socket]) -> None:
    """Of two that connected at once, one is not needed."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


async def _connected_to(
    loop: asyncio.AbstractEventLoop, address: Any, patience: Patience
) -> socket.socket:
    """A socket to this address, one of `getaddrinfo`'s; `OSError` if it does not answer."""
    family, kind, protocol, _, remote = address
    connected = socket.socket(family, kind, protocol)
    try:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(connected, patience)
        begin_unpaced(connected)
        async with asyncio.timeout(patience.connect_s):
            await loop.sock_connect(connected, remote)
    except BaseException:
        connected.close()
        raise
    return connected


def _keep_alive(connected: socket.socket, patience: Patience) -> None:
    """Have the kernel probe a silent peer.

    A client that waits for a group's rebalance, perhaps for minutes, sends nothing by which it
    would notice that the broker's host is gone.
    """
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, patience.silent_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, patience.probe_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, patience.probes)
    if patience.connect_s is not None:
        timeout_ms = patience.dead_s * 1000
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)


async def _addresses(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[Any]:
    """The host's addresses. At interpreter exit no thread can start: then it blocks to resolve."""
    try:
        return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except RuntimeError:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _sentence(error: OSError, host: str, port: int) -> str:
    if isinstance(error, socket.gaierror):
        return f"cannot listen on {host}: no address has that name"
    where = f"{host or 'every address'}, port {port}"
    match error.errno:
        case errno.EADDRINUSE:
            return f"cannot listen on {where}: another process does already"
        case errno.EADDRNOTAVAIL:
            return f"cannot listen on {where}: this machine does not have the address"
        case errno.EACCES:
            return f"cannot listen on {where}: that needs more privileges"
    return f"cannot listen on {where}: {error.strerror or error}"
