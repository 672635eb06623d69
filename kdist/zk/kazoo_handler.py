"""What kazoo's thread calls back with, and how it connects: without threads of its own, by our TLS.

kazoo would trust the machine's CAs besides ours, not compare host names, and read the second of
two answers that arrived in one TLS record only when the next one arrives.
"""

from __future__ import annotations

import math
import socket
import ssl
from collections.abc import Callable
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler  # type: ignore[import-untyped]
from kazoo.protocol.states import Callback  # type: ignore[import-untyped]


class InlineHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler without its two worker threads: callbacks run in the connection's thread."""

    running = False  # makes an `AsyncResult` call back right away

    def __init__(
        self, connect_s: float, context: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        """A server that does not accept a connection for so long is left for the next.

        `context` makes that of TLS, for each connection; None: in clear.
        """
        super().__init__()
        self._connect_s = connect_s
        self._context = context

    def start(self) -> None:
        """No workers to start."""

    def stop(self) -> None:
        """No workers to stop."""

    def dispatch_callback(self, callback: Callback) -> None:
        callback.func(*callback.args)

    def create_connection(
        self,
        address: tuple[str, int],
        hostname: str = "",
        timeout: float = math.inf,
        **_options: object,
    ) -> socket.socket:
        """kazoo would wait as long as the session lasts, for a host that says nothing."""
        patience_s = min(timeout, self._connect_s)
        connected: socket.socket = super().create_connection(address, timeout=patience_s)
        if self._context is None:
            return connected
        try:
            connected.settimeout(patience_s)
            return self._context().wrap_socket(connected, server_hostname=hostname)
        except BaseException:
            connected.close()
            raise

    def select(
        self, readers: list[Any], writers: list[Any], others: list[Any], timeout: float | None
    ) -> Any:
        """A TLS socket may have decrypted more than was read: then nothing more may arrive."""
        waiting = [each for each in readers if isinstance(each, ssl.SSLSocket) and each.pending()]
        found = super().select(readers, writers, others, 0 if waiting else timeout)
        if not waiting:
            return found
        return list({*waiting, *found[0]}), *found[1:]
