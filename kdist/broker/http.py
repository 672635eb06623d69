"""`/metrics` and `/health` over HTTP/1.1: as much of it as a scraper and a load balancer need.

GET and HEAD, one request per connection, without a body. A head of more than 8 KiB gets status 431.
Of 33 concurrent connections one is closed, of the address that has most, and so is any after 5 s,
however slow its peer is: peers that keep connections open for nothing must not blind a scraper.

With a token, a request must have it as `Authorization: Bearer <token>`, for any path: else 401.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, cast

HEAD_BYTES_MAX = 8 << 10
CONNECTIONS_MAX = 32
LASTING_S_MAX = 5.0

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class Page(NamedTuple):
    """A response."""

    status: int
    content_type: str
    body: bytes


Pages = dict[str, Callable[[], Page]]
"""By path, the function that makes its page. It is called on the loop and must be quick."""


class HttpPages:
    """All connections. Owner: the broker. `make` is the network's protocol factory."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pages: Pages, token: bytes | None = None
    ) -> None:
        self.loop = loop
        self.pages = pages
        self._token = token
        self.connections: dict[HttpConnection, None] = {}  # the oldest first

    def make(self) -> asyncio.BufferedProtocol:
        """The protocol for a new connection."""
        return HttpConnection(self)

    def knows(self, head: bytes) -> bool:
        """Whether a request's head has the token, if one is needed."""
        if self._token is None:
            return True
        fields = (line.partition(b":") for line in head.split(b"\r\n")[1:])
        given = (value for name, _, value in fields if name.strip().lower() == b"authorization")
        scheme, _, token = next(given, b"").strip().partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)

    def admit(self, connection: HttpConnection) -> None:
        """Add a connection, and close another if they are too many.

        The oldest of those from the address that has most, rather one that has not asked yet.
        """
        self.connections[connection] = None
        if len(self.connections) > CONNECTIONS_MAX:
            hosts = Counter(each.host for each in self.connections)
            closed = max(self.connections, key=lambda each: (hosts[each.host], not each.has_asked))
            closed.abort()
            self.forget(closed)

    def forget(self, connection: HttpConnection) -> None:
        self.connections.pop(connection, None)

    def close(self) -> None:
        for connection in list(self.connections):
            connection.abort()


class HttpConnection(asyncio.BufferedProtocol):
    """One connection, for one request and its response."""

    def __init__(self, around: HttpPages) -> None:
        self._around = around
        self._space = bytearray(HEAD_BYTES_MAX)
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self.host = ""
        self.has_asked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.host = str((transport.get_extra_info("peername") or ("", 0))[0])
        self._around.admit(self)
        self._timer = self._around.loop.call_later(LASTING_S_MAX, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - whyever it is
        self._around.forget(self)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - there is what there is
        return memoryview(self._space)[self._size :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport.is_closing():
            return  # ignore what follows the first request
        self._size += nbytes
        head, end, _ = bytes(self._space[: self._size]).partition(b"\r\n\r\n")
        if end:
            self._answer(head)
        elif self._size == HEAD_BYTES_MAX:
            self._send(_sentence(431), is_head=False)

    def _answer(self, request_head: bytes) -> None:
        method, _, rest = request_head.partition(b"\r\n")[0].partition(b" ")
        path, _, protocol = rest.partition(b" ")
        if not protocol.startswith(b"HTTP/1."):
            self._send(_sentence(400), is_head=False)
        elif method not in (b"GET", b"HEAD"):
            self._send(_sentence(405), is_head=False)
        elif not self._around.knows(request_head):
            self._send(_sentence(401), is_head=method == b"HEAD")
        else:
            make = self._around.pages.get(path.partition(b"?")[0].decode("latin-1"))
            self._send(make() if make else _sentence(404), is_head=method == b"HEAD")

    def _send(self, page: Page, *, is_head: bool) -> None:
        self.has_asked = True
        head = (
            f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\n"
            f"Content-Type: {page.content_type}\r\n"
            f"Content-Length: {len(page.body)}\r\n"
            + ("WWW-Authenticate: Bearer\r\n" if page.status == 401 else "")
            + "Connection: close\r\n\r\n"
        )
        self._transport.write(head.encode("ascii") + (b"" if is_head else page.body))
        self._transport.close()


def _sentence(status: int) -> Page:
    return Page(status, "text/plain; charset=utf-8", f"{_REASONS[status]}\n".encode("ascii"))
