"""One end of a connection over a socket: an asyncio transport that the selector calls directly.

Protocols see no difference from asyncio's own transport, which costs 3 us more per request. It adds
what `sending` needs: `direct_send` with flags, and file ranges by sendfile. Its write buffer limit
is 0: it calls `pause_writing` whenever the kernel does not take everything.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, runtime_checkable

from kdist.network.tick import ReceiveInto
from kdist.runtime.tick_loop import READABLE, WRITABLE, watch
from kdist.runtime.unix import send_file
from kdist.wire.primitives import Buffer

FILE_PIECE_BYTES = 2 << 20  # per sendfile: less than a millisecond if the peer reads fast enough
UNPACED = b"reno"  # every kernel has this congestion control
_NAME_BYTES_MAX = 16


class NotReceivedError(Exception):
    """A socket's error while receiving, kept apart from what a protocol raises."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@runtime_checkable
class Receiving(Protocol):
    """A protocol that receives by itself, which saves calls between it and the transport."""

    def receive(self, receive_into: ReceiveInto) -> int:
        """Does what `get_buffer`, `receive_into` and `buffer_updated` do; 0 at the end of stream.

        Raises `NotReceivedError` in place of what `receive_into` raises.
        """
        ...


def receive_by(protocol: asyncio.BufferedProtocol, receive_into: ReceiveInto) -> int:
    """As `Receiving.receive`, by asyncio's calls."""
    buffer = memoryview(protocol.get_buffer(-1))
    try:
        size = receive_into(buffer)
    except OSError as error:
        raise NotReceivedError(error) from error
    if size:
        protocol.buffer_updated(size)
    return size


class PeekingTransport(asyncio.Transport):
    """A transport that notices the peer's end while reading is paused, if it is asked."""

    is_handshaking = False  # whether `handshake_done` of the protocol is still to come

    def is_peer_gone(self) -> bool:
        """Whether to read on would find nothing but the end of the stream, or an error."""
        raise NotImplementedError


class DirectTransport(PeekingTransport):
    """A transport that the tick sends by, as by a socket."""

    direct_send: Callable[..., int]
    """As `send` of a non-blocking socket. To be called only while nothing is unsent."""

    def go_on(self, data: Buffer, sent: int | OSError) -> None:
        """Go on after a `direct_send` of `data` that took only `sent` bytes, or failed."""
        raise NotImplementedError

    def rest(self) -> None:
        """Send nothing until the next poll finds that the kernel takes more."""
        raise NotImplementedError


@runtime_checkable
class FileTransport(Protocol):
    """A transport by which a file's bytes leave as they are, without passing through the process.

    Invariant: no transport that encrypts has this method.
    """

    def send_file(self, file_descriptor: int, position: int, size: int) -> int:
        """How many bytes of the file the kernel took; if not all, `resume_writing` is called later.

        To be called only while nothing is unsent. 0 without `pause_writing`: the file is shorter.
        An `OSError` is the file's or the socket's, and leaves the transport as it was.
        """
        ...


class SocketTransport(DirectTransport):
    """Owner: the loop. `connected` is a non-blocking socket, which this transport closes.

    Calls `protocol` as asyncio does: connection_made first, connection_lost last. What `protocol`
    raises goes to the loop's exception handler.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connected: socket.socket,
        address: Any,
        protocol: asyncio.BaseProtocol,
    ) -> None:
        own_address = connected.getsockname()
        super().__init__({"peername": address, "sockname": own_address, "socket": connected})
        if own_address[0] != address[0]:
            _pace(connected)
        assert isinstance(protocol, asyncio.BufferedProtocol), "kdist's protocols are"
        self._loop = loop
        self._socket = connected
        self._descriptor = connected.fileno()
        self._protocol = protocol
        self.direct_send = connected.send
        self._receive_into: ReceiveInto = connected.recv_into
        self._receive = (
            protocol.receive if isinstance(protocol, Receiving) else partial(receive_by, protocol)
        )
        self._watched = 0  # the events it waits for
        self._unsent = bytearray()
        self._is_blocked = False  # until the kernel takes more
        self._is_closing = False
        self._is_lost = False
        protocol.connection_made(self)
        self.resume_reading()

    def _watch(self, events: int) -> None:
        if events != self._watched:
            self._watched = events
            watch(self._loop, self._descriptor, events, self._on_ready)

    def _on_ready(self, events: int) -> None:
        if events == READABLE or (events & ~WRITABLE and self._watched & READABLE):
            # One receive only, to be fair to other connections. It reports errors and the end too.
            try:
                if not self._receive(self._receive_into):
                    self._end_reading()
            except NotReceivedError as failed:
                if not isinstance(failed.error, BlockingIOError):
                    self._lose(failed.error)
            except BaseException:
                self.abort()  # the loop's exception handler gets what was raised
                raise
            if events == READABLE:
                return
        if self._watched & WRITABLE:
            self._write_on()

    # Receiving

    def _end_reading(self) -> None:
        self.pause_reading()
        if not self._protocol.eof_received():
            self.close()

    def pause_reading(self) -> None:
        self._watch(self._watched & ~READABLE)

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._watch(self._watched | READABLE)

    def is_peer_gone(self) -> bool:
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    # Sending

    def write(self, data: Buffer) -> None:
        if self._is_lost:
            return
        if not self._unsent:
            sent = self._send(data)
            if sent == len(data) or self._is_lost:
                return
            data = memoryview(data)[sent:]
        self._unsent += data
        self._block()

    def _send(self, data: Buffer) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._lose(error)
            return 0

    def go_on(self, data: Buffer, sent: int | OSError) -> None:
        if isinstance(sent, OSError):
            if not isinstance(sent, BlockingIOError):
                self._lose(sent)
            sent = 0
        if not self._is_lost:
            self._unsent += memoryview(data)[sent:]
            self._block()

    def send_file(self, file_descriptor: int, position: int, size: int) -> int:
        try:
            piece = min(size, FILE_PIECE_BYTES)
            sent = send_file(self._descriptor, file_descriptor, position, piece)
        except BlockingIOError:
            sent = 0
        else:
            if not sent:
                return 0  # the file is shorter
        if sent < size:
            self._block()
        return sent

    def rest(self) -> None:
        if not self._is_lost:
            self._block()

    def _block(self) -> None:
        if not self._is_blocked:
            self._is_blocked = True
            self._watch(self._watched | WRITABLE)
            self._protocol.pause_writing()

    def _write_on(self) -> None:
        if self._unsent:
            del self._unsent[: self._send(self._unsent)]
            if self._unsent or self._is_lost:
                return
        self._is_blocked = False
        if self._is_closing:
            self._lose(None)
            return
        self._protocol.resume_writing()
        if not self._is_blocked:
            self._watch(self._watched & ~WRITABLE)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignored: the limits are always 0."""

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    # The end

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Stop receiving, send what is left, then close."""
        if not self._is_closing:
            self._is_closing = True
            self.pause_reading()
            if not self._unsent:
                self._lose(None)

    def abort(self) -> None:
        """Close and send nothing more."""
        self._lose(None)

    def _lose(self, error: OSError | None) -> None:
        if not self._is_lost:
            self._is_lost = self._is_closing = True
            self._unsent.clear()
            self._watch(0)
            self._loop.call_soon(self._end, error)

    def _end(self, error: OSError | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close()
            # Reference cycles: with them, all would wait for the garbage collector.
            del self._protocol, self._receive, self.direct_send, self._receive_into


def begin_unpaced(fresh: socket.socket) -> None:
    """Choose an algorithm without pacing for a new socket; accepted ones inherit a listener's.

    Where BBR is the kernel's default congestion control, it paces sends by timers. Within a host
    nothing is congested, and the timers alone are a third or more of what it costs to send a
    fetched MiB. A socket that BBR has once controlled stays paced even after a change of algorithm
    (Linux's `tcp_pacing_check`). So every socket begins with another one, and those whose peer is
    on another host get the default once they are connected.
    """
    _choose(fresh, UNPACED)


def _pace(connected: socket.socket) -> None:
    """Give a connection to another host the kernel's default algorithm.

    One that its route chose (`ip route ... congctl`) has replaced `UNPACED` already, and stays.
    """
    if congestion_control(connected) == UNPACED:
        with suppress(OSError), socket.socket() as fresh:  # descriptors may have run out
            _choose(connected, congestion_control(fresh))


def congestion_control(of: socket.socket) -> bytes:
    """The name of the socket's congestion control algorithm."""
    return of.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES_MAX).rstrip(b"\0")


def _choose(of: socket.socket, algorithm: bytes) -> None:
    with suppress(OSError):  # the host may not allow this algorithm
        of.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm)
