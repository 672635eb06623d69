"""A server's TLS transport between a protocol and a transport that the test is in charge of."""

from __future__ import annotations

import asyncio
import ssl

from kdist.network.tick import Tick
from kdist.network.tls import ServerTls, TlsTransport
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from tests.certificates import client_context, server_context

LOOP = VirtualLoop(VirtualClock())  # not run: the test carries the bytes
TICK = Tick(LOOP)
CLIENT = client_context()


class Below(asyncio.Transport):
    """What encrypted bytes are written to; takes `room` of them, the rest waits."""

    def __init__(self) -> None:
        super().__init__()
        self.room = 1 << 30
        self.wire = bytearray()
        self.unsent = bytearray()
        self.is_full = self.is_aborted = False
        self.transport: TlsTransport

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def write(self, data: bytes | bytearray | memoryview) -> None:  # type: ignore[type-arg]
        self.unsent += data
        self.take(0)
        if self.unsent and not self.is_full:
            self.is_full = True
            self.transport.pause_writing()

    def take(self, more: int) -> None:
        self.room += more
        size = min(self.room, len(self.unsent))
        self.wire += self.unsent[:size]
        del self.unsent[:size]
        self.room -= size
        if self.is_full and not self.unsent:
            self.is_full = False
            self.transport.resume_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def pause_reading(self) -> None:
        """Nothing is read here."""

    def close(self) -> None:
        """What is left stays."""

    def abort(self) -> None:
        self.is_aborted = True


class Told(asyncio.BufferedProtocol):
    """Notes when it is told to stop and to go on."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(1 << 16)

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")


class Pair:
    """A server's transport over a `Below`, and a client that decrypts what reaches the wire."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.protocol, self.below = Told(), Below()
        context = context or server_context()
        tls = ServerTls(lambda: context, lambda: 0)
        self.server = TlsTransport(self.protocol, tls, TICK, LOOP)
        self.below.transport = self.server
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = CLIENT.wrap_bio(self.incoming, self.outgoing, server_hostname="server")
        self.server.connection_made(self.below)

    def shake_hands(self) -> Pair:
        """To the end of the handshake."""
        while self.server.is_handshaking:
            try:
                self.client.do_handshake()
            except ssl.SSLWantReadError:
                pass
            self.receive(self.outgoing.read())
            self.incoming.write(bytes(self.below.wire))
            self.below.wire.clear()
        return self

    def receive(self, data: bytes) -> None:
        self.server.get_buffer(-1)[: len(data)] = data
        self.server.buffer_updated(len(data))

    def decrypted(self) -> bytes:
        """All that the client can read."""
        self.incoming.write(bytes(self.below.wire))
        self.below.wire.clear()
        found = bytearray()
        try:
            while data := self.client.read(1 << 16):
                found += data
        except ssl.SSLWantReadError:
            pass
        return bytes(found)
