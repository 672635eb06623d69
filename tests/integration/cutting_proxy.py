"""A TCP proxy that closes connections after a number of bytes, or holds their traffic back.

For clients that are told its address as the broker's own. Threads, since its users block.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading


class CuttingProxy:
    """Listens from when it is made, on a port that may be chosen before the broker starts."""

    def __init__(self, port: int, target: int, seed: int = 1) -> None:
        self.cuts = 0
        self.bytes_between_cuts = 0  # 0: none
        self.may_pass = threading.Event()
        self.may_pass.set()
        self._target = target
        self._rng = random.Random(seed)
        self._listening = socket.create_server(("127.0.0.1", port))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return  # closed
            broker = socket.create_connection(("127.0.0.1", self._target))
            self._open += [client, broker]
            limit = self._rng.randrange(self.bytes_between_cuts or 1)
            for source, sink in ((client, broker), (broker, client)):
                threading.Thread(
                    target=self._pass_on, args=(source, sink, limit), daemon=True
                ).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, limit: int) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                self.may_pass.wait()
                passed += len(data)
                if self.bytes_between_cuts and passed > limit:
                    self.cuts += 1
                    break
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Accept no more, and end what there is."""
        self._listening.close()
        for each in self._open:
            each.close()
