"""One connection that speaks our own protocol codec: requests of any version, answers or bytes."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any, Self

from kdist.protocol.api import Api
from kdist.protocol.frame import RequestHeader, decode_response, encode_request

TIMEOUT_S = 20.0
_SIZE = struct.Struct(">i")


def request_frame(api: Api, version: int, request: Any, correlation_id: int = 1) -> bytes:
    """A whole request, its size included."""
    header = RequestHeader(api.key, version, correlation_id, "fire")
    return bytes(encode_request(header, request))


class Wire:
    """A blocking connection to a broker; OSError or EOFError where the broker has closed it."""

    def __init__(self, port: int, timeout_s: float = TIMEOUT_S) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, content: bytes) -> None:
        """Bytes as they are."""
        self.socket.sendall(content)

    def ask(self, api: Api, version: int, request: Any) -> Any:
        """The answer to one request."""
        self.send(request_frame(api, version, request))
        return decode_response(api, version, self.receive_frame())[1]

    def receive_frame(self) -> bytes:
        """The next answer without its size."""
        (size,) = _SIZE.unpack(self._receive(_SIZE.size))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            chunk = self.socket.recv(size - len(received))
            if not chunk:
                raise EOFError(f"closed after {len(received)} of {size} bytes")
            received += chunk
        return bytes(received)
