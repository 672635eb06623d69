"""A ZooKeeper server on a socket that forgets each session: what kazoo's thread does then."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kdist.zk.kazoo_client import KazooSession

_HEADER = struct.Struct("!ii")  # xid, type
_SESSION_ID = struct.Struct("!q")
_PING, _CLOSE, _AUTH = 11, -11, 100
_AUTH_FAILED = -115
_ID_AT = 16  # in a Connect: after protocol, last zxid and timeout


class ScriptedServer:
    """Opens sessions, hangs up at `drop`, and then does not know the session any more.

    It takes credentials, or none.
    """

    def __init__(self, listening: socket.socket, *, takes_credentials: bool = True) -> None:
        self._takes_credentials = takes_credentials
        self._listening = listening
        self._dropped: socket.socket | None = None
        self.port: int = listening.getsockname()[1]
        self.asked: list[int] = []  # the types of all requests but pings and closes
        threading.Thread(target=self._serve, daemon=True).start()

    def drop(self) -> None:
        assert self._dropped is not None, "a client has connected"
        self._dropped.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        number = 0
        while True:
            try:
                connection = self._listening.accept()[0]
            except OSError:
                return
            number += 1
            self._dropped = connection
            with connection:
                try:
                    self._serve_one(connection, number)
                except (OSError, struct.error):
                    pass  # hung up

    def _serve_one(self, connection: socket.socket, number: int) -> None:
        (resumed,) = _SESSION_ID.unpack_from(_frame(connection), _ID_AT)
        timeout_ms = 0 if resumed else 60_000
        _send(connection, struct.pack("!iiqi16s?", 0, timeout_ms, number, 16, b"p" * 16, False))
        while timeout_ms:
            xid, kind = _HEADER.unpack_from(_frame(connection))
            if kind not in (_PING, _CLOSE):
                self.asked.append(kind)
            is_refused = kind == _AUTH and not self._takes_credentials
            _send(connection, struct.pack("!iqi", xid, 1, _AUTH_FAILED if is_refused else 0))


def _frame(connection: socket.socket) -> bytes:
    (size,) = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))
    return connection.recv(size, socket.MSG_WAITALL)


def _send(connection: socket.socket, body: bytes) -> None:
    connection.sendall(struct.pack("!i", len(body)) + body)


@contextmanager
def scripted_server(**how: bool) -> Iterator[ScriptedServer]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        try:
            yield ScriptedServer(listening, **how)
        finally:
            listening.shutdown(socket.SHUT_RDWR)


Attempts = queue.Queue[BaseException | None]


def count_attempts(session: KazooSession) -> Attempts:
    """How each of the session's attempts to connect ends from now on: None if it succeeds."""
    attempts: Attempts = queue.Queue()
    connection = session.client._connection
    connect: Callable[..., Any] = connection._connect

    def counted(*server: object) -> Any:
        try:
            found = connect(*server)
        except BaseException as error:
            attempts.put(error)
            raise
        attempts.put(None)
        return found

    connection._connect = counted
    return attempts
