"""Answers sent as one piece at the end of a tick: their order among others, and failures."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pytest
from network_world import Answering, Served, World, framed, turning_world, until

from kdist.network.connection import Connection
from kdist.network.socket_transport import SocketTransport


@pytest.fixture
def world() -> Iterator[World]:
    yield from turning_world()


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


def test_a_turns_piece_precedes_answers_to_later_requests(world: World) -> None:
    async def scenario() -> None:
        async with Served(world) as served:
            peer = await served.peer()
            peer.send(b"first", b"park", b"third")
            assert await peer.answers(1) == [b"first"]
            served.handler.parked[0][0].send((framed(b"parked"),))
            assert await peer.answers(3) == [b"first", b"parked", b"third"]
            assert served.metrics.sent_bytes == len(b"".join(map(framed, peer.frames())))

    world.run(scenario())


def test_answers_of_a_turn_are_sent_in_one_piece(world: World) -> None:
    async def scenario() -> None:
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

    world.run(scenario())


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_the_rest_of_a_partly_sent_piece_precedes_all_that_follows(
    world: World, taken: int
) -> None:
    async def scenario() -> None:
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

    world.run(scenario())


def test_a_piece_that_finds_a_full_socket_buffer_is_sent_later(world: World) -> None:
    def refuse(_data: bytes) -> int:
        raise BlockingIOError(errno.EAGAIN, "no room")

    async def scenario() -> None:
        async with Served(world) as served:
            peer = await served.peer()
            await until(lambda: bool(served.handler.connected))
            Sends(served.handler.connected[0]).refuse = refuse
            peer.send(b"first", b"second")
            assert await peer.answers(2) == [b"first", b"second"]

    world.run(scenario())


def test_a_failing_socket_ends_its_connection_and_no_other(world: World) -> None:
    def refuse(_data: bytes) -> int:
        raise ConnectionResetError(errno.ECONNRESET, "reset")

    async def scenario() -> None:
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

    world.run(scenario())


def test_nothing_follows_an_answer_that_could_not_be_sent(world: World) -> None:
    """It may lack memory now where the next does not, if the tick ends early."""

    class Ending(Answering):
        def on_frame(self, connection: Connection, frame: memoryview) -> None:
            super().on_frame(connection, frame)
            world.server.tick.end()

    def refuse(_data: bytes) -> int:
        raise OSError(errno.ENOBUFS, "no memory")

    async def scenario() -> None:
        async with Served(world, Ending()) as served:
            peer = await served.peer()
            await until(lambda: bool(served.handler.connected))
            Sends(served.handler.connected[0]).refuse = refuse
            peer.send(b"first", b"second")
            await peer.closed()
            assert peer.received == b""

    world.run(scenario())


def test_a_connection_finished_in_the_turn_of_its_answer_still_gets_it(world: World) -> None:
    async def scenario() -> None:
        async with Served(world, Leaving(Connection.finish)) as served:
            peer = await served.peer()
            peer.send(b"x", b"not handled any more")
            await peer.closed()
            assert peer.frames() == [b"x"]

    world.run(scenario())


def test_a_connection_closed_in_the_turn_of_its_answer_gets_nothing(world: World) -> None:
    async def scenario() -> None:
        async with Served(world, Leaving(Connection.close)) as served:
            peer = await served.peer()
            peer.send(b"x")
            await peer.closed()
            assert peer.received == b""
            assert served.metrics.sent_bytes == 0

    world.run(scenario())
