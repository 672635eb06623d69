"""One end of a connection that is rude within what TCP allows: how it cuts, waits and ends.

`exchange` sends bytes in any segments and takes answers meanwhile, at whatever pace.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from collections.abc import Callable

TIMEOUT_S = 30.0
_SIZE = struct.Struct(">i")
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset
_SMALL_BUFFER = 4096
_RECEIVE_BYTES = 1 << 16
_BYTEWISE_MAX = 400  # then in larger pieces: one byte costs both sides a system call


class Ended(Exception):
    """The other side closed the connection."""


class Peer:
    """Owner: one thread."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self._rng = rng
        self._socket = socket.socket()
        if rng.random() < 0.3:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
        self._socket.settimeout(TIMEOUT_S)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, rng.random() < 0.7)
        self._socket.setblocking(False)
        self._is_slow = rng.random() < 0.3
        self._received = bytearray()
        self.frames: list[bytes] = []
        self.is_ended = False

    def exchange(self, data: bytes, is_done: Callable[[], bool], *, half_close: bool) -> None:
        """Send `data`, and take answers until `is_done` or the other side closes."""
        pieces = self._pieces(data)
        is_shut = False
        end_s = time.monotonic() + TIMEOUT_S
        while not self.is_ended and (pieces or not is_done()):
            assert time.monotonic() < end_s, f"no answer; {len(self._received)} bytes of the next"
            if half_close and not pieces and not is_shut:
                is_shut = True
                self._socket.shutdown(socket.SHUT_WR)
            is_pausing = self._is_slow and self._rng.random() < 0.1
            wanted = (0 if is_pausing else select.POLLIN) | (select.POLLOUT if pieces else 0)
            poll = select.poll()
            poll.register(self._socket, wanted)
            ready = poll.poll(self._rng.randrange(1, 40) if is_pausing else 1000)
            for _, events in ready:
                if events & select.POLLOUT and pieces:
                    self._send(pieces)
                if events & ~select.POLLOUT and wanted & select.POLLIN:
                    self._receive()

    def _pieces(self, data: bytes) -> list[memoryview]:
        """The pieces to send, in reverse: they are popped from the end."""
        view, rng = memoryview(data), self._rng
        how = rng.choice(("whole", "whole", "any", "any", "small", "bytes"))
        pieces = []
        while view:
            size = len(view)
            if how == "any":
                size = rng.randrange(1, min(size, 1 << rng.randrange(1, 21)) + 1)
            elif how == "small":
                size = rng.randrange(1, 200) if len(data) < 50_000 else 70_001
            elif how == "bytes":
                size = 1 if len(pieces) < _BYTEWISE_MAX else 9_999
            pieces.append(view[:size])
            view = view[size:]
        return pieces[::-1]

    def _send(self, pieces: list[memoryview]) -> None:
        try:
            sent = self._socket.send(pieces[-1])
        except BlockingIOError:
            return
        except OSError:  # closed there: what it has sent before that may still be here
            pieces.clear()
            return
        piece = pieces.pop()
        if sent < len(piece):
            pieces.append(piece[sent:])

    def _receive(self) -> None:
        size = self._rng.choice((1, 7, 500, _RECEIVE_BYTES)) if self._is_slow else _RECEIVE_BYTES
        try:
            chunk = self._socket.recv(size)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.is_ended = True
        self._received += chunk
        at, received = 0, self._received
        while len(received) - at >= _SIZE.size:
            (frame_size,) = _SIZE.unpack_from(received, at)
            if len(received) - at - _SIZE.size < frame_size:
                break
            self.frames.append(bytes(received[at + _SIZE.size : at + _SIZE.size + frame_size]))
            at += _SIZE.size + frame_size
        del received[:at]

    def close(self, *, with_reset: bool = False) -> None:
        if with_reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._socket.close()
