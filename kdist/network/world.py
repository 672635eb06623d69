"""The network that is passed in: listening and connecting, on real sockets or in a simulation.

`AsyncioNetwork` is the machine's. `simulated.SimulatedNetwork` is a network in memory that delays,
cuts and partitions. Both pass `tests/unit/network/test_network_contract.py`. What comes and goes
is asyncio's transports and protocols; a network has the `Turn` that its connections share.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from kdist.errors import UserError
from kdist.network.accepting import Accepting
from kdist.network.pacing import begin_unpaced
from kdist.network.socket_transport import SocketTransport
from kdist.network.turn import Turn

_SILENT_S, _PROBE_S, _PROBES = 20, 5, 4
DEAD_S = _SILENT_S + _PROBES * _PROBE_S  # after it who connected hears that its peer's host is gone

P = TypeVar("P", bound=asyncio.BaseProtocol)


class SocketOptions(NamedTuple):
    """Of the connections that a listener accepts; -1 leaves a buffer to the kernel."""

    backlog: int = 50
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1


class Server(Protocol):
    """An address that is listened on."""

    @property
    def port(self) -> int:
        """The port; where 0 was asked for, the one that was found."""
        ...

    def close(self) -> None:
        """Accept no more. Connections that were accepted stay."""
        ...


class Network(Protocol):
    """One host's network, with one event loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that calls the protocols."""
        ...

    @property
    def turn(self) -> Turn:
        """The turns of that loop."""
        ...

    async def listen(
        self,
        make: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        options: SocketOptions = SocketOptions(),  # noqa: B008 - a tuple
    ) -> Server:
        """Accept connections; an empty host is every address. `UserError` if it cannot be."""
        ...

    async def connect(self, make: Callable[[], P], host: str, port: int) -> P:
        """Connect; the protocol, connected. `OSError` if nobody answers."""
        ...


class AsyncioNetwork:
    """The machine's network."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.turn = Turn(loop)

    async def listen(
        self,
        make: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        options: SocketOptions = SocketOptions(),  # noqa: B008 - a tuple
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
        return Accepting(self.loop, sockets, make)

    async def connect(self, make: Callable[[], P], host: str, port: int) -> P:
        connected = await _connected(self.loop, host, port)
        protocol = make()
        SocketTransport(self.loop, connected, connected.getpeername(), protocol)
        return protocol


def _listen(sockets: Sequence[socket.socket], options: SocketOptions) -> None:
    for listening in sockets:
        # Those that it accepts inherit all of it, and begin with a window that fits.
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


async def _connected(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """A socket to the first address of the host that answers; `OSError`, the last, if none does."""
    refused = OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
    for family, kind, protocol, _, address in await _addresses(loop, host, port):
        connected = socket.socket(family, kind, protocol)
        try:
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(connected)
            begin_unpaced(connected)
            await loop.sock_connect(connected, address)
        except OSError as error:
            connected.close()
            refused = error
        except BaseException:
            connected.close()
            raise
        else:
            return connected
    raise refused


def _keep_alive(connected: socket.socket) -> None:
    """Have the kernel ask a silent peer whether it is there.

    Who waits for a group's rebalance, for minutes perhaps, sends nothing that would tell.
    """
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_S)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


async def _addresses(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[Any]:
    """A program that ends starts no more threads: who still connects then looks them up itself."""
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
            return f"cannot listen on {where}: it takes more privileges"
    return f"cannot listen on {where}: {error.strerror or error}"
