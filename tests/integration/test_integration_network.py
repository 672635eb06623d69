"""Connections on real sockets and real files: sendfile, many at once, and a stop under load."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from kdist.config.network import NetworkSettings
from kdist.errors import UserError
from kdist.metrics.broker import NetworkMetrics
from kdist.network.connection import Connection
from kdist.network.listener import Listener
from kdist.network.network import AsyncioNetwork
from kdist.protocol.frame import Chunk
from kdist.runtime.disk import Disk
from kdist.runtime.files import File
from kdist.runtime.process import AsyncioProcess

SIZE = 24 << 20


class Range:
    """A range of a file, as storage's `Slice`; counts its releases."""

    released = 0
    generation = 0

    def __init__(self, file: File, position: int, size: int, is_cold: bool) -> None:
        self.segment = self  # whose file is never cut
        self.is_cold = is_cold
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def release(self) -> None:
        Range.released += 1


class Fetching:
    """Answers `position size` with a head, that range of the file in two parts, and a tail."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.ranges = 0
        self.is_cold = False

    def on_connect(self, connection: Connection) -> None: ...

    def on_disconnect(self, connection: Connection) -> None: ...

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        position, size = map(int, bytes(frame).split())
        half = size // 2
        self.ranges += 2
        head = (size + 8).to_bytes(4, "big") + b"head"
        parts: list[Chunk] = [
            head,
            Range(self.file, position, half, self.is_cold),
            Range(self.file, position + half, size - half, self.is_cold),
            b"tail",
        ]
        connection.reserve().send(parts)


class Served:
    """A listener on a free port, and the file it serves."""

    def __init__(self, file: File) -> None:
        self.loop = asyncio.new_event_loop()
        self.handler = Fetching(file)
        self.metrics = NetworkMetrics()
        network = AsyncioNetwork(self.loop)
        self.tick = network.tick
        self.tasks = AsyncioProcess(self.loop)
        settings = NetworkSettings(socket_listen_backlog_size=1024)
        self.listener = Listener(network, self.handler, settings, self.metrics, self.tasks)
        self.port = self.loop.run_until_complete(self.listener.listen("127.0.0.1", 0))

    def run(self, clients: Callable[[int], Any]) -> Any:
        """Run what clients do with the port in a thread, while the loop serves."""
        return self.loop.run_until_complete(asyncio.to_thread(clients, self.port))

    def close(self) -> None:
        self.loop.run_until_complete(self.listener.close(drain_ms=1000))
        self.loop.run_until_complete(self.tasks.idle())
        self.tasks.close()
        self.loop.close()


@pytest.fixture
def content() -> bytes:
    return random.Random(5).randbytes(SIZE)


@pytest.fixture
def served(tmp_path: Path, content: bytes) -> Iterator[Served]:
    (tmp_path / "log").write_bytes(content)
    file = Disk().open(str(tmp_path / "log"))
    Range.released = 0
    made = Served(file)
    yield made
    made.close()
    file.close()


def read_exactly(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        assert part, "closed too early"
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_answer(connection: socket.socket) -> bytes:
    return read_exactly(connection, int.from_bytes(read_exactly(connection, 4), "big"))


def ask(connection: socket.socket, position: int, size: int) -> None:
    request = b"%d %d" % (position, size)
    connection.sendall(len(request).to_bytes(4, "big") + request)


def test_ranges_of_a_file_arrive_between_the_bytes_around_them(
    served: Served, content: bytes
) -> None:
    ranges = [(0, 10), (5, 100_000), (1, SIZE - 1), (SIZE - 3, 3), (77, 0 + 1), (0, SIZE)]

    def clients(port: int) -> list[bytes]:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            for position, size in ranges:  # all at once: answers queue up behind a full socket
                ask(connection, position, size)
            return [read_answer(connection) for _ in ranges]

    answers = served.run(clients)
    wanted = [b"head" + content[start : start + size] + b"tail" for start, size in ranges]
    assert answers == wanted
    assert Range.released == served.handler.ranges == 12
    assert served.metrics.sent_bytes == sum(len(answer) + 4 for answer in wanted)


def test_small_ranges_leave_in_one_piece_with_their_head(served: Served, content: bytes) -> None:
    def clients(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            ask(connection, 3, 2000)
            return connection.recv(1 << 16)

    head = (2008).to_bytes(4, "big") + b"head"
    assert served.run(clients) == head + content[3:2003] + b"tail"
    assert Range.released == 2


class Uncached:
    """A file of which the page cache has nothing until it was read, and who read it."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.path = file.path
        self.read_end = 0
        self.readers: set[str] = set()

    def read(self, position: int, size: int) -> bytes:
        self.readers.add(threading.current_thread().name)
        self.read_end = position + size
        return self.file.read(position, size)

    def read_cached(self, position: int, size: int) -> bytes | None:
        return self.file.read(position, size) if position + size <= self.read_end else None

    def fileno(self) -> int | None:
        return self.file.fileno()


def test_what_is_not_in_the_page_cache_is_read_by_a_thread(served: Served, content: bytes) -> None:
    uncached = Uncached(served.handler.file)
    served.handler.file = cast(File, uncached)
    served.handler.is_cold = True

    def clients(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            ask(connection, 7, SIZE - 7)
            return read_answer(connection)

    assert served.run(clients) == b"head" + content[7:] + b"tail"
    assert Range.released == 2
    assert uncached.readers
    assert all(name.startswith("kdist-blocking") for name in uncached.readers)


def test_a_reader_that_goes_away_while_its_range_is_read_leaves_nothing(served: Served) -> None:
    may_read = threading.Event()

    class Slow(Uncached):
        def read(self, position: int, size: int) -> bytes:
            may_read.wait(10)
            return super().read(position, size)

    served.handler.file = cast(File, Slow(served.handler.file))
    served.handler.is_cold = True

    def clients(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            ask(connection, 0, 500_000)  # not so much that reading pauses, and the end with it
            assert connection.recv(8, socket.MSG_WAITALL)[4:] == b"head"

    served.run(clients)

    async def gone() -> None:
        while served.metrics.open_connections:
            await asyncio.sleep(0.001)
        assert Range.released == 1
        may_read.set()
        while Range.released < 2:
            await asyncio.sleep(0.001)

    served.loop.run_until_complete(asyncio.wait_for(gone(), 10))


def test_readers_of_different_speed_get_their_own_bytes(served: Served, content: bytes) -> None:
    def clients(port: int) -> bool:
        slow = socket.create_connection(("127.0.0.1", port))
        fast = socket.create_connection(("127.0.0.1", port))
        with slow, fast:
            ask(slow, 0, SIZE)
            slow_start = slow.recv(1000)
            for n in range(50):
                ask(fast, n * 1000, 1000)
                assert read_answer(fast)[4:-4] == content[n * 1000 : n * 1000 + 1000]
            rest = read_exactly(slow, SIZE + 12 - len(slow_start))
            return (slow_start + rest)[8:-4] == content

    assert served.run(clients)


def test_ranges_are_released_when_the_reader_goes_away(served: Served) -> None:
    def clients(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            for _ in range(5):
                ask(connection, 0, SIZE)
            connection.recv(1000)

    served.run(clients)

    async def gone() -> None:
        while served.metrics.open_connections:
            await asyncio.sleep(0.001)

    served.loop.run_until_complete(asyncio.wait_for(gone(), 10))
    assert served.handler.ranges > 0
    assert Range.released == served.handler.ranges


def test_a_range_that_was_cut_ends_the_connection_and_no_other(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    def clients(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            ask(connection, SIZE - 10, 100)
            with pytest.raises((AssertionError, ConnectionError)):
                read_exactly(connection, 108)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            ask(connection, 0, 10)
            return read_answer(connection)

    assert len(served.run(clients)) == 18
    assert "was truncated" in caplog.text


def test_hundreds_of_connections_at_once_are_all_served(served: Served, content: bytes) -> None:
    def clients(port: int) -> list[bytes]:
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
        for number, connection in enumerate(connections):
            ask(connection, number * 10, 10)
        answers = [read_answer(connection) for connection in connections]
        assert served.tick.buffers.taken_bytes == 0
        for connection in connections:
            connection.close()
        return answers

    answers = served.run(clients)
    assert answers == [b"head" + content[n * 10 : n * 10 + 10] + b"tail" for n in range(300)]


def test_sockets_have_no_delay_and_the_buffers_asked_for(served: Served) -> None:
    def clients(port: int) -> tuple[int, int]:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            ask(connection, 0, 10)
            read_answer(connection)
            (mine,) = served.listener.connections
            found = mine._transport.get_extra_info("socket")
            return (
                found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
                found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            )

    assert served.run(clients) == (1, 1)


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        ("no such host", "cannot listen on no such host: no address has that name"),
        ("192.0.2.1", "cannot listen on 192.0.2.1, port 0: this machine does not have the address"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_a_one_sentence_error(
    served: Served, host: str, sentence: str
) -> None:
    with pytest.raises(UserError) as raised:
        served.loop.run_until_complete(served.listener.listen(host, 0))
    assert str(raised.value) == sentence


@pytest.mark.slow
def test_the_benchmark_judges_every_task_and_leaves_nothing_behind(tmp_path: Path) -> None:
    program = Path(__file__).parents[2] / "benchmarks" / "bench_network.py"
    done = subprocess.run(
        [sys.executable, str(program), "--quick", "--json", "--directory", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
        check=True,
    )
    rows = json.loads(done.stdout)
    assert [row["task"] for row in rows if row["verdict"] in ("met", "MISSED")] == [
        row["task"] for row in rows if row["contender"] == "C"
    ]
    assert len(rows) == 24
    assert list(tmp_path.iterdir()) == []
