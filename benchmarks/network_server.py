"""The package network with a handler that only makes the yardstick's system calls: its own cost.

    network_server.py PORT FILE FETCH_BYTES

As `peer/server.c`: key 0 checksums and appends, with one write for all requests of a tick; key 1
answers with a range of the file by sendfile; all else is answered with its correlation id.
"""

from __future__ import annotations

import asyncio
import gc
import struct
import sys

from kdist.config.network import NetworkSettings
from kdist.metrics.broker import NetworkMetrics
from kdist.network.connection import Connection
from kdist.network.listener import Listener
from kdist.network.network import AsyncioNetwork
from kdist.runtime.disk import Disk
from kdist.runtime.files import File
from kdist.runtime.process import AsyncioProcess
from kdist.runtime.tick_loop import TickLoop
from kdist.wire.crc32c import crc32c

HEADER = struct.Struct(">hhi")
ANSWER = struct.Struct(">ii")
WRAP = 1 << 30


class Range:
    """A range of the file."""

    is_cold = False
    __slots__ = ("file", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def release(self) -> None: ...


class Handler:
    """Appends and fetches."""

    def __init__(self, file: File, fetch_bytes: int) -> None:
        self._file = file
        self._file_bytes = file.size()
        self._fetch_bytes = fetch_bytes
        self._end = 0
        self._appended: list[memoryview] = []

    def on_connect(self, connection: Connection) -> None:
        connection.context = 0  # where its next fetch begins

    def on_disconnect(self, connection: Connection) -> None: ...

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        key, _, correlation_id = HEADER.unpack_from(frame)
        if key == 1:
            size = self._fetch_bytes
            head = ANSWER.pack(4 + size, correlation_id)
            part = Range(self._file, connection.context, size)
            connection.reserve().send((head, part))
            start = connection.context + size
            connection.context = start if start + size <= self._file_bytes else 0
            return
        if key == 0:
            records = frame[8:]
            crc32c(records)
            self._appended.append(records)
        connection.answer_at_once(ANSWER.pack(4, correlation_id))

    def append(self) -> None:
        """Write what was received in this tick of the event loop."""
        if self._appended:
            if self._end > WRAP:
                self._end = 0
            self._end += self._file.write(self._appended, self._end)
            self._appended.clear()


async def serve(port: int, path: str, fetch_bytes: int) -> None:
    """Serve until killed."""
    network = AsyncioNetwork(asyncio.get_running_loop())
    handler = Handler(Disk().open(path), fetch_bytes)
    network.tick.at_end(handler.append)
    tasks = AsyncioProcess(network.loop)
    listener = Listener(network, handler, NetworkSettings(), NetworkMetrics(), tasks)
    await listener.listen("127.0.0.1", port)
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=TickLoop) as runner:
        runner.run(serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
