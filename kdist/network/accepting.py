"""Accepting connections on listening sockets.

When the process runs out of descriptors, new connections wait in the kernel's backlog: accepting
pauses for a second, and the log gets a line every half minute at most, not one per attempt.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial

from kdist.network.socket_transport import SocketTransport
from kdist.runtime.tick_loop import READABLE, watch

logger = logging.getLogger(__name__)

_AT_ONCE_MAX = 32  # of a burst of connections: then those that are open are served
_PAUSE_S = 1.0
_SENTENCE_EVERY_S = 30.0


class Accepting:
    """A server on listening sockets, which it closes. Owner: the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: Sequence[socket.socket],
        make: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._loop = loop
        self._sockets = sockets
        self._make = make
        self._pause: asyncio.TimerHandle | None = None
        self._next_sentence_s = -_SENTENCE_EVERY_S
        self.port: int = sockets[0].getsockname()[1]
        self._watch(READABLE)

    def _watch(self, events: int) -> None:
        for listening in self._sockets:
            watch(self._loop, listening.fileno(), events, partial(self._accept, listening))

    def _accept(self, listening: socket.socket, _events: int) -> None:
        for _ in range(_AT_ONCE_MAX):
            try:
                connected, address = listening.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue  # the peer gave up before it was accepted
            except OSError as error:
                self._wait(error)
                return
            connected.setblocking(False)
            SocketTransport(self._loop, connected, address, self._make())

    def _wait(self, error: OSError) -> None:
        self._watch(0)
        self._pause = self._loop.call_later(_PAUSE_S, self._watch, READABLE)
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
