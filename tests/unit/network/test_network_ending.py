"""How a served connection ends, on real sockets and on the simulated network."""

from __future__ import annotations

import asyncio
import logging
import weakref
from pathlib import Path
from typing import cast

import pytest
from network_world import (
    Answering,
    RawPeer,
    Served,
    World,
    framed,
    until,
)

from kdist.metrics.broker import NetworkMetrics
from kdist.network.connection import Connection
from kdist.network.sending import COPIED_BYTES_MAX, FileRange, Sender
from kdist.runtime.disk import Disk
from kdist.runtime.tick_loop import Turn
from tests.stepped_process import SteppedProcess


async def test_a_peer_that_closes_its_sending_side_is_still_answered(world: World) -> None:
    async with Served(world) as served:
        peer = await served.peer()
        peer.send(b"last words")
        peer.end_sending()
        assert await peer.answers(1) == [b"last words"]
        await peer.closed()
        assert served.metrics.open_connections == 0


async def test_a_refusal_takes_effect_after_the_answers_of_the_ticks_end(world: World) -> None:
    class Gathering(Answering):
        def on_connect(self, connection: Connection) -> None:
            """`on_frame` notes the connection with each frame."""

        def on_frame(self, connection: Connection, frame: memoryview) -> None:
            self.connected.append(connection)
            self.seen.append(bytes(frame))

        def answer(self) -> None:
            while self.seen:
                self.connected.pop(0).answer_at_once(framed(self.seen.pop(0)))

    handler = Gathering()
    async with Served(world, handler) as served:
        world.server.tick.at_end(handler.answer)
        peer = await served.peer()
        peer.transport.write(framed(b"first") + framed(b"second") + b"\xff\xff\xff\xff")
        await peer.closed()
        assert peer.frames() == [b"first", b"second"]


async def test_a_close_cancelled_as_the_last_connection_ends_is_cancelled(world: World) -> None:
    served = Served(world)
    await served.__aenter__()
    peer = await served.peer()
    peer.send(b"park")
    await until(lambda: len(served.handler.parked) == 1)
    closing = asyncio.ensure_future(served.listener.close(drain_ms=5000))
    await asyncio.sleep(0)
    forget = served.listener.forget

    def forget_and_cancel(connection: Connection) -> None:
        forget(connection)
        closing.cancel()

    served.listener.forget = forget_and_cancel  # type: ignore[method-assign]
    peer.transport.abort()
    await asyncio.wait([closing])
    assert closing.cancelled()


async def test_closing_answers_requests_in_flight_and_accepts_no_more(world: World) -> None:
    served = Served(world)
    await served.__aenter__()
    peer, quiet = await served.peer(), await served.peer()
    peer.send(b"park")
    await until(lambda: len(served.handler.parked) == 1)
    closing = asyncio.ensure_future(served.listener.close(drain_ms=5000))
    await quiet.closed()
    with pytest.raises(ConnectionRefusedError):
        await world.client.connect(RawPeer, world.host, served.port)
    served.handler.parked[0][0].send((framed(b"answered"),))
    await closing
    assert await peer.answers(1) == [b"answered"]
    await peer.closed()
    assert served.metrics.open_connections == 0


async def test_closing_does_not_wait_longer_than_the_drain_time(world: World) -> None:
    served = Served(world)
    await served.__aenter__()
    peer = await served.peer()
    peer.send(b"park")
    await until(lambda: len(served.handler.parked) == 1)
    await served.listener.close(drain_ms=20)
    await peer.closed()
    assert len(served.handler.lost) == 1


async def test_an_answer_to_a_disconnected_peer_is_dropped(world: World) -> None:
    """As for a produce whose client disconnected before the end of the tick."""
    async with Served(world) as served:
        peer = await served.peer()
        await until(lambda: bool(served.handler.connected))
        (connection,) = served.handler.connected
        peer.transport.close()
        await until(lambda: len(served.handler.lost) == 1)
        sent_bytes = served.metrics.sent_bytes
        connection.answer_at_once(b"late")
        assert not connection.pending_response
        assert served.metrics.sent_bytes == sent_bytes


def test_a_connection_closed_by_its_handler_leaves_nothing_behind(world: World) -> None:
    class Closing(Answering):
        def on_frame(self, connection: Connection, frame: memoryview) -> None:
            self.seen.append(bytes(frame))
            connection.close()

    async def scenario() -> None:
        async with Served(world, Closing()) as served:
            peer = await served.peer()
            peer.send(b"first", b"second", b"x" * 5000)
            await peer.closed()
            await until(lambda: len(served.handler.lost) == 1)
            assert served.handler.seen == [b"first"]

    world.run(scenario())
    assert world.server.tick.buffers.taken_bytes == 0


async def test_bytes_written_before_a_close_arrive(world: World) -> None:
    content = bytes(range(256)) * 20_000

    class Parting(RawPeer):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.writelines([content[:1000], content[1000:]])
            self.transport.close()

    server = await world.server.listen(Parting, world.host, 0)
    peer = await world.client.connect(RawPeer, world.host, server.port)
    await peer.closed()
    server.close()
    assert peer.received == content


@pytest.mark.usefixtures("without_collector")
async def test_a_closed_connection_is_freed_without_the_garbage_collector(
    socket_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tuned to run rarely: until then each closed connection would hold hundreds of bytes."""
    handler = Answering()
    seen: list[weakref.ref[Connection]] = []
    handler.on_connect = lambda connection: seen.append(weakref.ref(connection))  # type: ignore[method-assign]
    handler.on_disconnect = lambda _: None  # type: ignore[method-assign]

    # A warning that is kept has its error, and that the frames it went through.
    caplog.set_level(logging.ERROR, "kdist.network.connection")
    async with Served(socket_world, handler) as served:
        for content in (b"", framed(b"hello"), b"\x00\x00\x10\x00part", b"\xff\xff\xff\xff"):
            ending, aborting = await served.peer(), await served.peer()
            for peer in (ending, aborting):
                peer.transport.write(content)
            ending.end_sending()
            aborting.transport.abort()
        await until(lambda: len(seen) == 8 and not served.metrics.open_connections)
        await asyncio.sleep(0.01)
        assert [each() for each in seen] == [None] * 8
        assert served.listener.tick.buffers.taken_bytes == 0


class _Range:
    """A file range that counts how often it was released."""

    size, position, is_cold = COPIED_BYTES_MAX + 1, 0, False
    generation = 0

    def __init__(self) -> None:
        self.released = 0
        self.segment = self  # whose file is never cut

    def __len__(self) -> int:
        return self.size

    def release(self) -> None:
        self.released += 1


class _Transport(asyncio.Transport):
    """A transport that writes nothing."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def test_nothing_follows_an_answer_whose_file_was_truncated_while_it_was_sent(
    socket_world: World, tmp_path: Path
) -> None:
    """Though the tick may end early, for want of room, and more of the peer's come in the same."""
    path = tmp_path / "log"
    path.write_bytes(bytes(10))
    file = Disk().open_readonly(str(path))

    class Cut(_Range):
        def __init__(self) -> None:
            super().__init__()
            self.file = file

    class Cutting(Answering):
        def on_frame(self, connection: Connection, frame: memoryview) -> None:
            if frame == b"cut":
                connection.reserve().send((b"head", cast(FileRange, Cut())))
            else:
                socket_world.server.tick.end()
                super().on_frame(connection, frame)

    async def scenario() -> None:
        async with Served(socket_world, Cutting()) as served:
            peer = await served.peer()
            peer.send(b"cut", b"behind it")
            await peer.closed()
            assert peer.received == b"head" + bytes(10)

    socket_world.run(scenario())
    file.close()


def test_an_answer_given_between_a_failed_send_and_the_end_is_released() -> None:
    sender = Sender(
        *(_Transport(), NetworkMetrics(), lambda: None, SteppedProcess()), Turn(lambda: 0.0)
    )
    before, between = _Range(), _Range()
    sender.put([cast(FileRange, before)])
    sender.close()  # the send failed
    sender.put([cast(FileRange, between)])
    sender.write()
    sender.close()  # the connection hears of it
    assert (before.released, between.released) == (1, 1)
