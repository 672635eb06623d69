"""TLS between a protocol and the transport of its bytes, by OpenSSL over two buffers in memory.

    protocol (`Connection`, `Client`)   plaintext
    `TlsTransport`                      its transport, and the protocol of the one below
    the transport below                 records: `SocketTransport`, or a simulated one

What is received goes into one buffer, is decrypted to where the protocol wants it (the arena, or
its own buffer for a large frame), and is handed over as from a socket. What is sent is encrypted in
pieces, of which the one below has at most one to send: a slow reader's answers wait as plaintext,
once. A buffer of OpenSSL's never shrinks, so what enters one at a time is bounded.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

from kdist.network.socket_transport import (
    DirectTransport,
    NotReceivedError,
    Receiving,
    receive_by,
)
from kdist.network.tick import ReceiveInto, Tick
from kdist.network.tls_failed import TlsFailed, tls_failed
from kdist.security.names_of_certificates import end_of_certificate
from kdist.wire.primitives import Buffer

PIECE_BYTES = 1 << 16  # per encryption and per receive: the fastest, as measured
_RECORD_BYTES_MAX = 1 << 14  # of plaintext
_UNREAD_BYTES_MAX = 4 * PIECE_BYTES  # of records that wait below, if the peer asks for ever more
_LINGER_S = 1.0
_CUT = "it closed the connection in the TLS handshake"
_EXPIRY_CHECK_S = 3600.0  # the wall clock may jump


class ServerTls(NamedTuple):
    """How a listener's connections begin TLS.

    `context` gives the one for the next connection, `now_ms` is a wall clock. Of one listener, and
    of one address there, at most so many handshakes are under way: the oldest is given up.
    """

    context: Callable[[], ssl.SSLContext]
    now_ms: Callable[[], int]
    handshake_s: float = 10.0
    handshakes_max: int = 1000  # each takes 45 KiB
    handshakes_per_host_max: int = 100


class ClientTls(NamedTuple):
    """As `ServerTls`, for a connection that is made. Its context says whether names are checked."""

    context: Callable[[], ssl.SSLContext]
    now_ms: Callable[[], int]
    handshake_s: float = 10.0


class Handshakes:
    """Those under way of one listener. Owner: the loop."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._hosts: dict[TlsTransport, str] = {}  # oldest first
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._hosts)

    def begin(self, transport: TlsTransport) -> None:
        """One more, for which another may have to go."""
        host = str((transport.get_extra_info("peername") or ("",))[0])
        self._hosts[transport] = host
        self._counts[host] += 1
        if self._counts[host] > self._tls.handshakes_per_host_max:
            next(each for each, its in self._hosts.items() if its == host).give_up()
        elif len(self._hosts) > self._tls.handshakes_max:
            next(iter(self._hosts)).give_up()

    def end(self, transport: TlsTransport) -> None:
        """It is done, or was given up."""
        host = self._hosts.pop(transport, None)
        if host is not None:
            self._counts[host] -= 1
            if not self._counts[host]:
                del self._counts[host]


@runtime_checkable
class Admitted(Protocol):
    """A protocol whose `connection_made` comes before the handshake, so that it can refuse."""

    def handshake_done(self) -> None:
        """From now on there is something to receive, and may be sent."""
        ...


class TlsTransport(DirectTransport, asyncio.BufferedProtocol):
    """Owner: the loop. `host`: whom a client means to reach; a server has `handshakes` instead.

    A protocol that is not `Admitted` is called as in asyncio: first when the handshake is done, and
    never if it fails. "peer_der" of `get_extra_info` is the peer's certificate, if it showed one.
    """

    def __init__(
        self,
        protocol: asyncio.BaseProtocol,
        tls: ServerTls | ClientTls,
        tick: Tick,
        loop: asyncio.AbstractEventLoop,
        host: str | None = None,
        handshakes: Handshakes | None = None,
    ) -> None:
        super().__init__()
        assert isinstance(protocol, asyncio.BufferedProtocol), "kdist's protocols are"
        self._protocol: asyncio.BufferedProtocol = protocol
        self._settings = tls
        self._tick = tick
        self._loop = loop
        self._handshakes = handshakes
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.context().wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=host is None,
            server_hostname=host and host.removesuffix("."),
        )
        self.is_handshaking = True
        self._is_told = False  # whether the protocol's `connection_made` was called
        # A client's, for `ready`.
        self._ready: asyncio.Future[None] | None = None if host is None else loop.create_future()
        self._timer: asyncio.TimerHandle | None = None  # of the handshake, then of the certificate
        self._first = b""  # the first bytes received: what the peer speaks, if it is not TLS
        self._held = b""  # decrypted by `is_peer_gone`
        self._is_paused = False
        self._is_ended = False  # the peer sends no more: it said so, or ended the stream
        self._is_end_told = False
        self._unsent = bytearray()  # plaintext
        self._taken = 0  # how much of its data the latest `direct_send` has encrypted
        self._is_below_blocked = False
        self._is_blocked = False  # as the protocol knows it
        self._is_closing = False
        self._error: TlsFailed | None = None

    async def ready(self) -> None:
        """Wait until a client's handshake is done; `TlsFailed` or another `OSError` if it fails."""
        assert self._ready is not None
        try:
            await self._ready
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._ready = None

    # The calls of the transport below

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        below = self._below = cast(asyncio.Transport, transport)
        self._extra = {
            name: below.get_extra_info(name) for name in ("peername", "sockname", "socket")
        }
        below.set_write_buffer_limits(high=0)
        self._timer = self._loop.call_later(self._settings.handshake_s, self._time_out)
        self._receive = (
            self._protocol.receive
            if isinstance(self._protocol, Receiving)
            else self._receive_by_calls
        )
        if isinstance(self._protocol, Admitted):
            self._is_told = True
            self._protocol.connection_made(self)
        if not self._is_closing:
            if self._handshakes is not None:
                self._handshakes.begin(self)
            self._shake_hands()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - always -1
        """A part of the arena, which is free again as soon as OpenSSL has its own copy."""
        return self._tick.arena()[:PIECE_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._take(self._tick.arena()[:nbytes])

    def receive(self, receive_into: ReceiveInto) -> int:
        """As `Receiving.receive`: for sockets, with fewer calls."""
        room = self._tick.arena()[:PIECE_BYTES]
        try:
            size = receive_into(room)
        except OSError as error:
            raise NotReceivedError(error) from error
        if size:
            self._take(room[:size])
        return size

    def _take(self, received: memoryview) -> None:
        if self._is_closing:
            return
        self._incoming.write(received)
        if self.is_handshaking:
            self._first = self._first or bytes(received[:8])
            self._shake_hands()
        elif self._is_paused:
            self._below.pause_reading()
        else:
            self._hand_over()

    def eof_received(self) -> bool:
        """The stream ended. Most clients do not say so within TLS; frames have lengths."""
        self._is_ended = True
        if self._is_closing:
            self._below.close()
        elif self.is_handshaking:
            if self._first or self._ready is not None:
                self._error = TlsFailed(_CUT if self._first else f"{_CUT}: does it speak TLS?")
            self.close()
        elif not self._is_paused:
            self._end_reading()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        if self._handshakes is not None:
            self._handshakes.end(self)
        error = self._error or exc
        if self._ready is not None and not self._first and isinstance(exc, ConnectionError):
            error = TlsFailed(f"{_CUT}: does it speak TLS?")
        if self._timer is not None:
            self._timer.cancel()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error or TlsFailed("the connection was closed"))
        try:
            if self._is_told:
                self._protocol.connection_lost(error)
        finally:
            self._held, self._error, self._is_blocked = b"", None, False
            self._unsent.clear()
            # Reference cycles: with them, all would wait for the garbage collector. The transport
            # below forgets this one.
            del self._protocol, self._receive, self._tls

    # The handshake

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._refuse(tls_failed(error, self._first))
        else:
            self._flush()
            self._end_handshake()

    def _refuse(self, error: TlsFailed) -> None:
        """Send OpenSSL's alert, which tells the peer why, and wait a little for its end.

        A client of TLS 1.3 may have sent a request already. If that met a closed socket, a reset
        would overtake the alert, and the client try for ever.
        """
        self._error, self._is_closing = error, True
        if self._outgoing.pending and self._ready is None:
            assert self._timer is not None
            self._timer.cancel()
            self._timer = self._loop.call_later(_LINGER_S, self._below.abort)
            self._flush()
        else:
            self._flush()
            self._below.close()

    def _end_handshake(self) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._timer = None
        if self._handshakes is not None:
            self._handshakes.end(self)
        certificate = self._tls.getpeercert(binary_form=True)
        if certificate:
            try:
                self._await_end(end_of_certificate(certificate))
            except ValueError as error:
                self._fail(TlsFailed(f"its certificate cannot be read: {error}"))
        if self._is_closing:
            return
        self.is_handshaking = False
        self._extra["peer_der"] = certificate
        protocol = self._protocol
        if isinstance(protocol, Admitted):
            protocol.handshake_done()
        else:
            self._is_told = True
            protocol.connection_made(self)
        if self._ready is not None:
            self._ready.set_result(None)
        if self._is_blocked and not self._is_closing:
            protocol.pause_writing()
        self._hand_over()

    def _time_out(self) -> None:
        self._error = TlsFailed("the TLS handshake was not completed in time")
        self.abort()

    def give_up(self) -> None:
        """Others want to connect, too."""
        self._error = self._error or TlsFailed("too many TLS handshakes are under way")
        self.abort()

    def _await_end(self, end_s: float) -> None:
        """Close the connection once the peer's certificate has ended (seconds since the epoch)."""
        left_s = end_s - self._settings.now_ms() / 1000
        if left_s <= 0:
            self._error = TlsFailed("its certificate has expired")
            self.abort()
        else:
            wait_s = min(left_s, _EXPIRY_CHECK_S)
            self._timer = self._loop.call_later(wait_s, self._await_end, end_s)

    # Receiving

    def _hand_over(self) -> None:
        """Hand over all whole records that are here, until the protocol pauses."""
        while not self._is_paused and not self._is_closing and self._holds_bytes():
            try:
                self._receive(self._decrypt_into)
            except NotReceivedError as failed:
                if isinstance(failed.error, ssl.SSLWantReadError):
                    break  # the rest is a part of a record
                self._flush()
                self._fail(failed.error)
        if self._is_closing:
            return
        self._flush()  # an answer of OpenSSL's own, as to a change of keys
        if self._is_paused:
            if self._holds_bytes():
                self._below.pause_reading()
        elif self._is_ended:
            self._end_reading()

    def _holds_bytes(self) -> bool:
        return bool(self._incoming.pending or self._held or self._tls.pending())

    def _receive_by_calls(self, receive_into: ReceiveInto) -> int:
        return receive_by(self._protocol, receive_into)

    def _decrypt_into(self, buffer: memoryview) -> int:
        """As a socket's `recv_into`, for as many records as are here and fit."""
        size, room = 0, len(buffer)
        if self._held:
            size = min(room, len(self._held))
            buffer[:size] = self._held[:size]
            self._held = self._held[size:]
        tls, incoming = self._tls, self._incoming
        while size < room and (incoming.pending or tls.pending()):
            try:
                read = cast(int, tls.read(room - size, cast(Any, buffer[size:])))
            except ssl.SSLError:
                if size:
                    break  # raised again by the next call
                raise
            if not read:
                self._is_ended = True
                self._incoming.read()  # nothing may follow
                break
            size += read
        return size

    def _end_reading(self) -> None:
        if not self._is_end_told:
            self._is_end_told = True
            self._below.pause_reading()
            if not self._protocol.eof_received():
                self.close()

    def pause_reading(self) -> None:
        """Hand nothing over. The one below goes on until there is something here."""
        self._is_paused = True

    def resume_reading(self) -> None:
        if self._is_paused and not self._is_closing:
            self._is_paused = False
            self._loop.call_soon(self._go_on_reading)

    def _go_on_reading(self) -> None:
        """What is here comes first: for it the socket will not become readable."""
        if self._is_closing or self._is_paused:
            return
        try:
            self._hand_over()
        except BaseException:
            self.abort()  # the loop's exception handler gets what was raised
            raise
        if not (self._is_closing or self._is_paused or self._is_ended):
            self._below.resume_reading()

    def is_peer_gone(self) -> bool:
        if self._is_closing:
            return True
        if self._held:
            return False
        try:
            self._held = self._tls.read(_RECORD_BYTES_MAX)
        except ssl.SSLWantReadError:
            if not self._is_ended:
                self._below.resume_reading()
            return self._is_ended
        except ssl.SSLError:
            return True
        return not self._held

    # Sending

    def write(self, data: Buffer) -> None:
        if self._is_closing:
            return
        taken = 0 if self._is_blocked else self._encrypt(data)
        if taken < len(data):
            self._unsent += memoryview(data)[taken:]
            self._block()

    def direct_send(self, data: Buffer, flags: int = 0) -> int:  # noqa: ARG002 - no use here
        """As a socket's `send`: less than all if the kernel has not taken all that was encrypted.

        What it has not taken is encrypted again never, so `go_on` must follow.
        """
        self._taken = 0
        if self._is_closing:
            raise BrokenPipeError
        if self._is_blocked:
            raise BlockingIOError
        taken = self._taken = self._encrypt(data)
        if self._is_below_blocked:
            return (taken - 1) // PIECE_BYTES * PIECE_BYTES  # all but the last piece
        return taken

    def go_on(self, data: Buffer, sent: int | OSError) -> None:  # noqa: ARG002 - `_taken` says it
        if not self._is_closing:
            self._unsent += memoryview(data)[self._taken :]
            self._block()

    def _encrypt(self, data: Buffer) -> int:
        """Encrypt until the one below takes no more; how much was encrypted."""
        if len(data) <= PIECE_BYTES:
            if data:
                self._encrypt_piece(data)
            return len(data)
        view, done = memoryview(data), 0
        while done < len(view) and not self._is_below_blocked:
            self._encrypt_piece(view[done : done + PIECE_BYTES])
            done += PIECE_BYTES
        return min(done, len(view))

    def _encrypt_piece(self, piece: Buffer) -> None:
        try:
            self._tls.write(piece)
        except ssl.SSLError as error:
            self._fail(error)
        else:
            self._below.write(self._outgoing.read())

    def _flush(self) -> None:
        """Send what OpenSSL says by itself."""
        if self._outgoing.pending:
            self._below.write(self._outgoing.read())
            if self._below.get_write_buffer_size() > _UNREAD_BYTES_MAX:
                self._error = TlsFailed("it asks for ever more and reads nothing")
                self.abort()

    def rest(self) -> None:
        self._block()
        self._loop.call_soon(self._end_rest)

    def _end_rest(self) -> None:
        if self._is_blocked and not self._is_below_blocked:
            self._send_on()

    def pause_writing(self) -> None:
        """The call of the transport below."""
        self._is_below_blocked = True
        self._block()

    def _block(self) -> None:
        if not self._is_blocked:
            self._is_blocked = True
            if not self.is_handshaking:
                self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The call of the transport below."""
        self._is_below_blocked = False
        self._send_on()

    def _send_on(self) -> None:
        unsent = self._unsent
        while unsent and not self._is_below_blocked:
            piece = bytes(unsent[:PIECE_BYTES])
            del unsent[:PIECE_BYTES]
            self._encrypt_piece(piece)
        if self._is_below_blocked:
            return
        self._is_blocked = False
        if self._is_closing:
            self._close_below()
        elif not self.is_handshaking:
            self._protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignored: the limits are always 0."""

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    # The end

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Stop receiving, send what is left, say that this is the end, then close."""
        if not self._is_closing:
            self._is_closing = True
            if not self._unsent:
                self._close_below()

    def _close_below(self) -> None:
        if not self.is_handshaking:
            with suppress(ssl.SSLError):  # it wants the peer's end, too
                self._tls.unwrap()
            self._flush()
        self._below.close()

    def _fail(self, error: OSError) -> None:
        """End it because of what the peer sent, once the alert that OpenSSL wrote has left."""
        self._error = error if isinstance(error, TlsFailed) else tls_failed(error, self._first)
        self._is_closing = True
        self._unsent.clear()
        self._below.close()

    def abort(self) -> None:
        """Close and send nothing more."""
        self._is_closing = True
        if self._handshakes is not None:
            self._handshakes.end(self)
        self._unsent.clear()
        self._below.abort()
