"""Corking and pieces: answers leave in full packets and in order, and nothing stays behind."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest
from network_files import CONTENT, File, Part
from network_world import (
    Answering,
    RawPeer,
    Served,
    World,
    framed,
    real_world,
    turning_world,
    until,
)

from kdist.network import socket_transport
from kdist.network.connection import Connection
from kdist.network.socket_transport import SocketTransport
from kdist.runtime import tick_loop
from kdist.runtime.tick_loop import TickLoop

HEAD_BYTES = 5


@pytest.fixture
def world() -> Iterator[World]:
    yield from turning_world()


class Fetching(Answering):
    """Answers `position size tail` with that range between a byte and a tail of so many."""

    def __init__(self, file: File) -> None:
        super().__init__()
        self.file = file
        self.corked: list[int] = []  # each change, as the socket was told

    def on_connect(self, connection: Connection) -> None:
        super().on_connect(connection)
        sender = connection._sender
        set_option = sender._set_option
        assert set_option is not None

        def told(level: int, option: int, value: int) -> None:
            assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_CORK)
            self.corked.append(int(value))
            set_option(level, option, value)

        sender._set_option = told

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        position, size, tail = map(int, bytes(frame).split())
        head = (1 + size + tail).to_bytes(4, "big") + b"a"
        part = Part(self.file, position, size)
        connection.reserve().send([head, part, bytes(tail)] if tail else [head, part])


def expected(*asked: tuple[int, int, int]) -> list[bytes]:
    return [b"a" + CONTENT[start : start + size] + bytes(tail) for start, size, tail in asked]


def exchange(
    world: World, path: Path, *asked: tuple[int, int, int], cold_from: int = len(CONTENT)
) -> list[int]:
    """Request all at once; returns how the socket was corked and uncorked."""
    handler = Fetching(File(str(path / "log"), cold_from))

    async def scenario() -> None:
        async with Served(world, handler) as served:
            peer = await served.peer()
            peer.send(*(b"%d %d %d" % each for each in asked))
            assert await peer.answers(len(asked)) == expected(*asked)
            (connection,) = handler.connected
            await until(lambda: not connection._sender.has_waiting)
            assert handler.file.released == len(asked)
            open_socket = connection._transport.get_extra_info("socket")
            assert not open_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK)

    world.run(scenario())
    return handler.corked


class Sends:
    """Wraps a connection's sends: keeps their `sizes`; `refuse`, if set, replaces them."""

    def __init__(self, connection: Connection) -> None:
        self.sizes: list[int] = []
        self.refuse: Callable[[bytes], int] | None = None
        transport = connection._transport
        assert isinstance(transport, SocketTransport)
        self.send = transport.direct_send
        transport.direct_send = connection._sender.socket_send = self._send

    def _send(self, data: bytes, flags: int = 0) -> int:
        self.sizes.append(len(data))
        refuse, self.refuse = self.refuse, None
        return self.send(data, flags) if refuse is None else refuse(data)


class Leaving(Answering):
    """After an answer, does `leave` to the connection in the same tick."""

    def __init__(self, leave: Callable[[Connection], None]) -> None:
        super().__init__()
        self._leave = leave

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        super().on_frame(connection, frame)
        self._leave(connection)


def test_bytes_behind_the_records_leave_with_them(world: World, tmp_path: Path) -> None:
    assert exchange(world, tmp_path, (7, 1_000_000, 3)) == [1, 0]


def test_answers_sent_together_are_corked_once(world: World, tmp_path: Path) -> None:
    asked = [(0, 20_000, 3), (20_000, 30_000, 3), (50_000, 9_000, 5)]
    assert exchange(world, tmp_path, *asked) == [1, 0]


def test_an_answer_larger_than_the_sockets_buffer_is_corked_to_its_end(
    world: World, tmp_path: Path
) -> None:
    assert exchange(world, tmp_path, *[(0, 3_000_000, 3)] * 8) == [1, 0]


def test_records_with_nothing_behind_them_need_no_cork(world: World, tmp_path: Path) -> None:
    assert exchange(world, tmp_path, (7, 1_000_000, 0)) == []


def test_nothing_is_held_back_during_a_cold_read(world: World, tmp_path: Path) -> None:
    """The bytes before cold records leave at once."""
    assert exchange(world, tmp_path, (0, 1_500_000, 3), cold_from=0) == []
    other = tmp_path / "other"
    other.mkdir()
    asked = [(0, 1_000_000, 3), (2_000_000, 500_000, 3), (1_000_000, 100_000, 3)]
    assert exchange(world, other, *asked, cold_from=2_000_000) == [1, 0, 1, 0]


NO_ROOM = BlockingIOError(errno.EAGAIN, "no room")
RESET = ConnectionResetError(errno.ECONNRESET, "reset")


@dataclass
class Step:
    """One of an answer's three, and what the kernel takes of it at first."""

    name: str
    taken: int | OSError

    def take(self, call: Callable[[int], int], size: int) -> int:
        """`call` with as many bytes of `size` as it may have."""
        taken, self.taken = self.taken, size
        if isinstance(taken, OSError):
            raise taken
        return call(min(size, taken))


def exchange_with(
    world: World, path: Path, monkeypatch: pytest.MonkeyPatch, step: Step
) -> tuple[list[bytes] | None, int]:
    """The answer to a question, None if the connection is lost; how often its range was let go."""
    handler = Fetching(File(str(path / "log"), len(CONTENT)))
    send_file = socket_transport.send_file

    def sending_file(target: int, source: int, position: int, size: int) -> int:
        if step.name != "range":
            return send_file(target, source, position, size)
        return step.take(lambda some: send_file(target, source, position, some), size)

    monkeypatch.setattr(socket_transport, "send_file", sending_file)

    async def scenario() -> list[bytes] | None:
        async with Served(world, handler) as served:
            peer = await served.peer()
            await until(lambda: bool(handler.connected))
            transport = handler.connected[0]._sender._direct
            assert transport is not None
            send = transport.direct_send

            def sending(data: bytes, flags: int = 0) -> int:
                if step.name != ("head" if len(data) == HEAD_BYTES else "tail"):
                    return send(data, flags)
                return step.take(lambda some: send(data[:some], flags), len(data))

            monkeypatch.setattr(transport, "direct_send", sending)
            peer.send(b"7 1000000 3")
            await until(lambda: peer.is_closed or len(peer.ends()) > 0)
            found = await peer.answers(1) if peer.ends() else None
            await until(lambda: handler.file.released > 0)
            return found

    return world.run(scenario()), handler.file.released


@pytest.mark.parametrize("taken", [NO_ROOM, 2])
@pytest.mark.parametrize("name", ["head", "range", "tail"])
def test_a_partial_send_is_continued_in_order(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, taken: int | OSError
) -> None:
    found, released = exchange_with(world, tmp_path, monkeypatch, Step(name, taken))
    assert (found, released) == (expected((7, 1_000_000, 3)), 1)


@pytest.mark.parametrize("name", ["head", "range", "tail"])
def test_an_answer_that_fails_in_its_middle_is_released_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    found, released = exchange_with(world, tmp_path, monkeypatch, Step(name, RESET))
    assert (found, released) == (None, 1)


def test_an_answer_whose_file_was_truncated_ends_its_connection(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_transport, "FILE_PIECE_BYTES", 0)  # as at the end of a file
    found, released = exchange_with(world, tmp_path, monkeypatch, Step("nothing", 0))
    assert (found, released) == (None, 1)


@pytest.mark.parametrize("size", [100, 1_000_000])
@pytest.mark.parametrize("tail", [0, 3])
async def test_an_answer_whose_file_was_truncated_and_written_again_ends_its_connection(
    world: World, tmp_path: Path, size: int, tail: int
) -> None:
    """The file is as long as before, but between the look-up and the sending it had another end."""

    class Overtaken(Fetching):
        def on_frame(self, connection: Connection, frame: memoryview) -> None:
            part = Part(self.file, 0, size)
            self.file.generation += 1
            connection.reserve().send([b"head", part, bytes(tail)] if tail else [b"head", part])

    handler = Overtaken(File(str(tmp_path / "log"), len(CONTENT)))
    async with Served(world, handler) as served:
        peer = await served.peer()
        peer.send(b"fetch")
        await peer.closed()
        assert handler.file.released == 1


def test_files_that_take_long_to_send_let_another_connection_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are asked for by one connection, whose peer reads fast enough to take them at once."""
    burnt_s = 0.0
    send_file, sent = socket_transport.send_file, []

    def slowly(*arguments: int) -> int:
        nonlocal burnt_s
        burnt_s += tick_loop.TURN_S
        sent.append(1)
        return send_file(*arguments)

    class Noting(RawPeer):
        def buffer_updated(self, nbytes: int) -> None:
            before.append(len(sent))
            super().buffer_updated(nbytes)

    before: list[int] = []
    monkeypatch.setattr(socket_transport, "send_file", slowly)
    handler = Fetching(File(str(tmp_path / "log"), len(CONTENT)))
    asked = [(start, 10_000, 3) for start in range(20)]

    async def scenario(world: World) -> None:
        async with Served(world, handler) as served:
            peer = await served.peer()
            other = await world.client.connect(Noting, world.host, served.port)
            peer.send(*(b"%d %d %d" % each for each in asked))
            other.send(b"0 1 1")  # a copy, not a file
            assert await peer.answers(len(asked)) == expected(*asked)
            assert before[0] <= 3 < len(asked) == len(sent)
            assert not any(each._sender.has_waiting for each in handler.connected)

    for world in real_world(TickLoop(lambda: monotonic() + burnt_s)):
        world.run(scenario(world))


async def test_a_ticks_piece_precedes_answers_to_later_requests(world: World) -> None:
    async with Served(world) as served:
        peer = await served.peer()
        peer.send(b"first", b"park", b"third")
        assert await peer.answers(1) == [b"first"]
        served.handler.parked[0][0].send((framed(b"parked"),))
        assert await peer.answers(3) == [b"first", b"parked", b"third"]
        assert served.metrics.sent_bytes == len(b"".join(map(framed, peer.frames())))


async def test_answers_of_a_tick_are_sent_in_one_piece(world: World) -> None:
    async with Served(world) as served:
        peer = await served.peer()
        await until(lambda: bool(served.handler.connected))
        sends = Sends(served.handler.connected[0])
        ticks = [[b"a"], [b"bc", b"def"], [b"%d" % n * 1000 for n in range(9)]]
        for tick in ticks:
            count = len(peer.frames())
            peer.send(*tick)
            assert (await peer.answers(count + len(tick)))[count:] == tick
        assert sends.sizes == [len(b"".join(map(framed, tick))) for tick in ticks]
        assert served.metrics.sent_bytes == len(peer.received)


@pytest.mark.parametrize("taken", [0, 1, 5])
async def test_the_rest_of_a_partly_sent_piece_precedes_all_that_follows(
    world: World, taken: int
) -> None:
    async with Served(world) as served:
        peer = await served.peer()
        await until(lambda: bool(served.handler.connected))
        sends = Sends(served.handler.connected[0])
        sends.refuse = lambda data: sends.send(data[:taken]) if taken else 0
        contents = [b"first", b"second", bytes(5000), b"park", b"last"]
        peer.send(*contents)
        await until(lambda: len(served.handler.seen) == len(contents))
        for reply, content in served.handler.parked:
            reply.send((framed(content),))
        assert await peer.answers(len(contents)) == contents
        assert served.metrics.sent_bytes == len(peer.received)


async def test_a_piece_that_finds_a_full_socket_buffer_is_sent_later(world: World) -> None:
    def refuse(_data: bytes) -> int:
        raise BlockingIOError(errno.EAGAIN, "no room")

    async with Served(world) as served:
        peer = await served.peer()
        await until(lambda: bool(served.handler.connected))
        Sends(served.handler.connected[0]).refuse = refuse
        peer.send(b"first", b"second")
        assert await peer.answers(2) == [b"first", b"second"]


async def test_a_failing_socket_ends_its_connection_and_no_other(world: World) -> None:
    def refuse(_data: bytes) -> int:
        raise ConnectionResetError(errno.ECONNRESET, "reset")

    async with Served(world) as served:
        peers = [await served.peer() for _ in range(2)]
        await until(lambda: len(served.handler.connected) == 2)
        Sends(served.handler.connected[0]).refuse = refuse
        for peer in peers:
            peer.send(b"x")
        await peers[0].closed()
        assert await peers[1].answers(1) == [b"x"]
        assert peers[0].received == b""
        assert served.handler.lost == served.handler.connected[:1]


async def test_nothing_follows_an_answer_that_could_not_be_sent(world: World) -> None:
    """It may lack memory now where the next does not, if the tick ends early."""

    class Ending(Answering):
        def on_frame(self, connection: Connection, frame: memoryview) -> None:
            super().on_frame(connection, frame)
            world.server.tick.end()

    def refuse(_data: bytes) -> int:
        raise OSError(errno.ENOBUFS, "no memory")

    async with Served(world, Ending()) as served:
        peer = await served.peer()
        await until(lambda: bool(served.handler.connected))
        Sends(served.handler.connected[0]).refuse = refuse
        peer.send(b"first", b"second")
        await peer.closed()
        assert peer.received == b""


async def test_a_connection_finished_in_the_turn_of_its_answer_still_gets_it(world: World) -> None:
    async with Served(world, Leaving(Connection.finish)) as served:
        peer = await served.peer()
        peer.send(b"x", b"not handled any more")
        await peer.closed()
        assert peer.frames() == [b"x"]


async def test_a_connection_closed_in_the_turn_of_its_answer_gets_nothing(world: World) -> None:
    async with Served(world, Leaving(Connection.close)) as served:
        peer = await served.peer()
        peer.send(b"x")
        await peer.closed()
        assert peer.received == b""
        assert served.metrics.sent_bytes == 0
