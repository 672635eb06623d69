"""A network in memory, in virtual time: hosts, connections between them, and faults.

`SimulatedNetwork(loop, rng).host("a")` is one host's `Network`. A partition stops bytes
silently; a crash ends a host's connections as a killed process or a power loss does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from contextvars import Context, copy_context
from typing import NamedTuple, TypeVar

from kdist.errors import UserError
from kdist.network.network import CLIENT_PATIENCE, Patience, Server, SocketOptions, encrypting
from kdist.network.tick import Tick
from kdist.network.tls import ClientTls, ServerTls, TlsTransport
from kdist.testing.simulated_transport import Address, Conditions, Line, SimulatedTransport
from kdist.testing.virtual_loop import VirtualLoop

P = TypeVar("P", bound=asyncio.BaseProtocol)

_FIRST_FREE_PORT = 32768
_CONNECT_S_MAX = 30.0


class _Listening(NamedTuple):
    make: Callable[[], asyncio.BaseProtocol]
    context: Context  # of the process that listens
    wait_s: Callable[[], float]


class SimulatedNetwork:
    """All hosts. Owner: the loop."""

    def __init__(
        self,
        loop: VirtualLoop,
        rng: random.Random,
        conditions: Conditions = Conditions(),  # noqa: B008 - a tuple
    ) -> None:
        self.loop = loop
        self.conditions = conditions
        self.watch: Callable[[SimulatedTransport, bytes], None] | None = None
        """Sees what is about to be sent, and may make its connection late (`late_ms`)."""
        self._rng = rng
        self._are_parted = False
        self._sides: dict[str, int] = {}  # of the partition, by host
        self._one_way: set[tuple[str, str]] = set()  # hosts from and to which nothing passes
        self._held: dict[SimulatedTransport, None] = {}  # with bytes that the partition stops
        self._listening: dict[Address, _Listening] = {}
        self._transports: dict[SimulatedTransport, None] = {}  # in the order they were made
        self._last_port = _FIRST_FREE_PORT

    def host(self, name: str) -> SimulatedHost:
        """One host's network. Each call stands for a process there, with ticks of its own."""
        return SimulatedHost(self, name)

    # Faults

    def partition(self, *sides: Collection[str]) -> None:
        """Let nothing pass between hosts of different sides; a host in none of them is isolated."""
        self._sides = {host: number for number, side in enumerate(sides) for host in side}
        self._are_parted = True

    def block(self, host: str, other: str) -> None:
        """Let nothing pass from one host to another, until `heal`; the way back stays open."""
        self._one_way.add((host, other))

    def heal(self) -> None:
        """End the partition and all that is blocked. Bytes that it stopped arrive."""
        self._are_parted = False
        self._one_way.clear()
        held, self._held = self._held, {}
        for transport in held:
            self.loop.call_in_world(self.loop.world_time(), transport.deliver)

    def _hold(self, transport: SimulatedTransport) -> None:
        self._held[transport] = None

    def is_cut(self, host: str, other: str) -> bool:
        """Whether nothing passes from one host to another."""
        if (host, other) in self._one_way:
            return True
        if not self._are_parted or host == other:
            return False
        sides = self._sides
        return host not in sides or other not in sides or sides[host] != sides[other]

    def crash(self, host: str, *, is_power_lost: bool = False) -> None:
        """End all connections of `host` without a call to its protocols. Peers get a reset.

        If power is lost there is no reset: only peers that connected to it notice, by keepalive.
        """
        accepted_at = set(self._listening)
        self._listening = {
            address: listening
            for address, listening in self._listening.items()
            if address.host != host
        }
        for transport in [each for each in self._transports if each.local.host == host]:
            transport.vanish()
            if not is_power_lost:
                transport.send_reset()
            elif transport.local in accepted_at:
                silence = TimeoutError("the peer does not answer")
                dead_s = self.loop.world_time() + CLIENT_PATIENCE.dead_s
                self.loop.call_in_world(dead_s, transport.peer.lose, silence)

    def connections(self) -> list[SimulatedTransport]:
        """Both ends of each, in the order in which they were made."""
        return list(self._transports)

    # What hosts call

    def open(self, address: Address, listening: _Listening) -> Address:
        """Listen; port 0 chooses a free one. `UserError` if the port is taken."""
        if address.port == 0:
            address = Address(address.host, self._free_port())
        if address in self._listening:
            raise UserError(
                f"cannot listen on {address.host}, port {address.port}: another process does"
                " already"
            )
        self._listening[address] = listening
        return address

    def shut(self, address: Address) -> None:
        """Stop listening."""
        self._listening.pop(address, None)

    async def connect(self, host: str, make: Callable[[], P], remote: Address) -> P:
        """Connect `host` to `remote`, and return the connected protocol."""
        deadline = self.loop.time() + _CONNECT_S_MAX
        await self._travel()
        while self.is_cut(host, remote.host) or self.is_cut(remote.host, host):
            if self.loop.time() >= deadline:
                raise TimeoutError(f"connecting to {remote.host}:{remote.port} timed out")
            await asyncio.sleep(1)  # until the next SYN
        listening = self._listening.get(remote)
        if listening is None:
            raise ConnectionRefusedError(f"nobody listens on {remote.host}:{remote.port}")
        while (wait_s := listening.wait_s()) > 0:
            await asyncio.sleep(wait_s)
        local = Address(host, self._free_port())
        protocol = make()
        mine = self._transport(local, remote, protocol, copy_context())
        its_context = listening.context.copy()
        served = its_context.run(listening.make)
        other = self._transport(remote, local, served, its_context)
        mine.peer, other.peer = other, mine
        protocol.connection_made(mine)
        other.call(served.connection_made, other)
        return protocol

    def _transport(
        self, local: Address, remote: Address, protocol: asyncio.BaseProtocol, context: Context
    ) -> SimulatedTransport:
        line = Line(
            *(self.loop, self._rng, self.conditions, self.is_cut),
            *(self._watch, self._hold, self._forget),
        )
        transport = SimulatedTransport(line, local, remote, protocol, context)
        self._transports[transport] = None
        return transport

    def _watch(self, transport: SimulatedTransport, piece: bytes) -> None:
        if self.watch is not None:
            self.watch(transport, piece)

    def _forget(self, transport: SimulatedTransport) -> None:
        self._transports.pop(transport, None)

    async def _travel(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, self.conditions.delay_ms_max) / 1000)

    def _free_port(self) -> int:
        self._last_port += 1
        return self._last_port


class SimulatedServer:
    """An address that a simulated host listens on."""

    def __init__(self, network: SimulatedNetwork, address: Address) -> None:
        self._network = network
        self._address = address
        self.port = address.port

    def close(self) -> None:
        self._network.shut(self._address)


class SimulatedHost:
    """One process on one host of a `SimulatedNetwork`."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self._network = network
        self.name = name
        self.loop = network.loop
        self.tick = Tick(network.loop)

    async def listen(
        self,
        make: Callable[[], asyncio.BaseProtocol],
        host: str,  # noqa: ARG002 - a simulated host has one address, its name
        port: int,
        options: SocketOptions = SocketOptions(),  # noqa: ARG002, B008 - a tuple, of no meaning here
        wait_s: Callable[[], float] = float,
        tls: ServerTls | None = None,
    ) -> Server:
        listening = _Listening(encrypting(make, tls, self), copy_context(), wait_s)
        return SimulatedServer(
            self._network, self._network.open(Address(self.name, port), listening)
        )

    async def connect(
        self,
        make: Callable[[], P],
        host: str,
        port: int,
        patience: Patience = CLIENT_PATIENCE,  # noqa: ARG002 - the simulation has its own
        tls: ClientTls | None = None,
    ) -> P:
        remote = Address(host, port)
        if tls is None:
            return await self._network.connect(self.name, make, remote)
        protocol = make()
        transport = TlsTransport(protocol, tls, self.tick, self.loop, host)
        await self._network.connect(self.name, lambda: transport, remote)
        await transport.ready()
        return protocol
