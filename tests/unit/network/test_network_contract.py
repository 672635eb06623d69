"""What a served connection does, on real sockets and on the simulated network."""

from __future__ import annotations

import asyncio
import random

import pytest
from network_world import Answering, Served, World, framed, until

from kdist.errors import ApiError, Error, UserError
from kdist.network.client import Client, ClientSettings
from kdist.network.connection import Connection
from kdist.testing.simulated_disk import SimulatedDisk


async def test_a_request_is_answered(world: World) -> None:
    async with Served(world) as served:
        peer = await served.peer()
        peer.send(b"hello")
        assert await peer.answers(1) == [b"hello"]


async def test_frames_received_byte_by_byte_are_whole(world: World) -> None:
    async with Served(world) as served:
        peer = await served.peer()
        for byte in framed(b"") + framed(b"slowly") + framed(b"x" * 600):
            peer.transport.write(bytes((byte,)))
            await asyncio.sleep(0)
        assert await peer.answers(3) == [b"", b"slowly", b"x" * 600]


async def test_pipelined_requests_of_all_sizes_are_answered_in_order(world: World) -> None:
    contents = [bytes((65 + n % 26,)) * (n * n * 37 % 9000) for n in range(120)]
    async with Served(world) as served:
        peer = await served.peer()
        peer.send(*contents)
        assert await peer.answers(len(contents)) == contents


async def test_a_frame_larger_than_any_buffer_arrives_whole(world: World) -> None:
    content = bytes(range(256)) * 6000
    async with Served(world) as served:
        peer = await served.peer()
        peer.send(b"before", content, b"after")
        assert await peer.answers(3) == [b"before", content, b"after"]
        assert world.server.tick.buffers.taken_bytes == 0


async def test_answers_given_out_of_order_leave_in_order(world: World) -> None:
    async with Served(world) as served:
        peer = await served.peer()
        peer.send(b"park 1", b"now 2", b"park 3", b"quiet 4", b"now 5")
        await until(lambda: len(served.handler.seen) == 5)
        (first, _), (third, _) = served.handler.parked
        third.send((framed(b"third"),))
        await asyncio.sleep(0.01)
        assert peer.frames() == []
        first.send((framed(b"fir"), b""))
        assert await peer.answers(4) == [b"fir", b"now 2", b"third", b"now 5"]


async def test_an_answer_may_consist_of_many_pieces(world: World) -> None:
    class Pieces(Answering):
        def on_frame(self, connection: Connection, frame: memoryview) -> None:
            whole = framed(bytes(frame) * 1000)
            connection.reserve().send(
                [whole[:3], memoryview(whole)[3:10], bytearray(whole[10:500]), whole[500:]]
            )

    async with Served(world, Pieces()) as served:
        peer = await served.peer()
        peer.send(b"abc", b"de")
        assert await peer.answers(2) == [b"abc" * 1000, b"de" * 1000]


async def test_a_ticks_frames_stay_in_place_until_its_hooks_have_run(world: World) -> None:
    class Collecting(Answering):
        def __init__(self) -> None:
            super().__init__()
            self.waiting: list[tuple[Connection, memoryview]] = []

        def on_frame(self, connection: Connection, frame: memoryview) -> None:
            self.waiting.append((connection, frame))

        def commit(self) -> None:
            for connection, frame in self.waiting:
                connection.reserve().send((framed(bytes(frame)),))
            self.waiting.clear()

    handler = Collecting()
    world.server.tick.at_end(handler.commit)
    async with Served(world, handler) as served:
        peers = [await served.peer() for _ in range(8)]
        contents = [[bytes((n, i)) * (1 + 9001 * i) for i in range(8)] for n in range(8)]
        for peer, content in zip(peers, contents, strict=True):
            peer.send(*content)
        for peer, content in zip(peers, contents, strict=True):
            assert await peer.answers(8) == content


async def test_file_ranges_without_a_descriptor_are_copied_and_released(world: World) -> None:
    content = random.Random(4).randbytes(2_000_000)
    file = SimulatedDisk(random.Random(1)).create("/log")
    file.write([content], 0)
    released: list[tuple[int, int]] = []

    class Range:
        is_cold = False
        generation = 0

        def __init__(self, position: int, size: int) -> None:
            self.segment = self  # whose file is never cut
            self.file = file
            self.position = position
            self.size = size

        def __len__(self) -> int:
            return self.size

        def release(self) -> None:
            released.append((self.position, self.size))

    class Fetching(Answering):
        def on_frame(self, connection: Connection, frame: memoryview) -> None:
            position, size = map(int, bytes(frame).split())
            head = (size + 3).to_bytes(4, "big")
            connection.reserve().send([head, b"a", Range(position, size), b"bc"])

    ranges = [(0, 10), (9, 1_000_000), (1_000_000, 1_000_000), (1_999_999, 1)]
    async with Served(world, Fetching()) as served:
        peer = await served.peer()
        peer.send(*(b"%d %d" % each for each in ranges))
        assert await peer.answers(4) == [
            b"a" + content[start : start + size] + b"bc" for start, size in ranges
        ]
        assert sorted(released) == sorted(ranges)
        peer.transport.pause_reading()
        held = served.metrics.held_connections
        peer.send(*[b"0 1999999"] * 300)
        await until(lambda: served.metrics.held_connections > held)
        assert len(released) < 300
        peer.transport.abort()
        await until(lambda: len(served.handler.lost) == 1)
        assert set(released) == {*ranges, (0, 1_999_999)}


async def test_a_connection_whose_peer_reads_nothing_is_held_and_resumes_later(
    world: World,
) -> None:
    class Large(Answering):
        def on_frame(self, connection: Connection, frame: memoryview) -> None:
            self.seen.append(bytes(frame))
            connection.reserve().send((framed(bytes(frame) * 60_000),))

    async with Served(world, Large()) as served:
        peer = await served.peer()
        peer.transport.pause_reading()
        requests = [b"%06d" % n for n in range(200)]
        peer.send(*requests)
        await until(lambda: served.metrics.held_connections > 0)
        await asyncio.sleep(0.05)
        seen = len(served.handler.seen)
        (connection,) = served.handler.connected
        assert seen < 100
        assert connection._sender.waiting_bytes < 3 << 20
        peer.transport.resume_reading()
        answers = await peer.answers(200)
        assert answers == [request * 60_000 for request in requests]


async def test_too_many_unanswered_requests_hold_the_connection(world: World) -> None:
    async with Served(world) as served:
        served.listener.limits = served.listener.limits._replace(in_flight_max=10)
        peer = await served.peer()
        peer.send(*(b"park %d" % n for n in range(25)))
        await until(lambda: served.metrics.held_connections > 0)
        await asyncio.sleep(0.05)
        assert len(served.handler.parked) == 10
        for n in range(25):
            await until(lambda n=n: len(served.handler.parked) > n)  # type: ignore[misc]
            reply, content = served.handler.parked[n]
            reply.send((framed(content),))
        assert await peer.answers(25) == [b"park %d" % n for n in range(25)]


async def test_a_protocol_error_closes_that_connection_only(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with Served(world) as served:
        good, bad = await served.peer(), await served.peer()
        bad.send(b"first", b"bad", b"never seen")
        await bad.closed()
        good.send(b"hello")
        assert await good.answers(1) == [b"hello"]
        assert b"never seen" not in served.handler.seen
        assert served.metrics.failed_connections == 1
        assert served.metrics.open_connections == 1
        assert "a bad request" in caplog.text
        assert len(caplog.records) == 1


async def test_requests_before_a_protocol_error_are_answered(world: World) -> None:
    async with Served(world) as served:
        peer = await served.peer()
        peer.send(b"first", b"park", b"second", b"bad", b"never seen")
        await until(lambda: served.metrics.failed_connections == 1)
        assert await peer.answers(1) == [b"first"]
        served.handler.parked[0][0].send((framed(b"parked"),))
        assert await peer.answers(3) == [b"first", b"parked", b"second"]
        await peer.closed()
        assert served.handler.seen[-1] == b"bad"
        peer = await served.peer()
        peer.transport.write(framed(b"third") + b"\xff\xff\xff\xff")
        assert await peer.answers(1) == [b"third"]
        await peer.closed()


async def test_a_connection_refused_for_a_protocol_error_is_closed_in_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdist.network.connection._REFUSED_S", 0.05)
    async with Served(world) as served:
        peer = await served.peer()
        peer.send(b"park", b"bad")
        await peer.closed()
        await until(lambda: len(served.handler.lost) == 1)


async def test_a_refused_connection_does_not_wait_for_a_peer_that_reads_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdist.network.connection._REFUSED_S", 0.05)
    async with Served(world) as served:
        peer = await served.peer()
        peer.transport.pause_reading()
        peer.send(b"park", b"bad")
        await until(lambda: served.metrics.failed_connections == 1)
        served.handler.parked[0][0].send((bytes(32 << 20),))
        await until(lambda: len(served.handler.lost) == 1)


async def test_an_oversized_frame_closes_the_connection_before_its_content_arrives(
    world: World,
) -> None:
    async with Served(world, socket_request_max_bytes=1000) as served:
        for start in (b"\x00\x00\x03\xe9", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"GET "):
            peer = await served.peer()
            peer.transport.write(start)
            await peer.closed()
        assert served.metrics.failed_connections == 4
        assert world.server.tick.buffers.taken_bytes == 0


async def test_answers_for_a_disconnected_peer_are_released(world: World) -> None:
    async with Served(world) as served:
        peer = await served.peer()
        peer.send(b"park", b"park")
        await until(lambda: len(served.handler.parked) == 2)
        peer.transport.abort()
        await until(lambda: len(served.handler.lost) == 1)
        for reply, _ in served.handler.parked:
            reply.send((framed(b"too late"),))
        assert served.metrics.open_connections == 0


async def test_a_taken_port_is_reported_in_a_sentence(world: World) -> None:
    async with Served(world) as served:
        other = Served(world)
        with pytest.raises(UserError, match=f"port {served.port}: another process does"):
            await other.listener.listen(world.host, served.port)


async def test_a_refused_connect_names_the_address(world: World) -> None:
    async with Served(world) as served:
        port = served.port
    with pytest.raises(ApiError, match=f"cannot connect to {world.host}:{port}") as raised:
        await Client.connect(world.client, world.host, port, ClientSettings("test"))
    assert raised.value.error is Error.NETWORK_EXCEPTION


async def test_bytes_and_connections_are_counted(world: World) -> None:
    async with Served(world) as served:
        peer = await served.peer()
        peer.send(b"12345", b"678")
        await peer.answers(2)
        assert served.metrics.received_bytes == 16
        assert served.metrics.sent_bytes == 16
        assert served.metrics.accepted_connections == 1
        assert served.metrics.open_connections == 1


@pytest.mark.parametrize("error", [OSError("a bug"), AssertionError("a bug")])
def test_a_handlers_bug_reaches_the_loops_exception_handler(world: World, error: Exception) -> None:
    class Buggy(Answering):
        def on_frame(self, connection: Connection, frame: memoryview) -> None:
            raise error

    async def scenario() -> None:
        async with Served(world, Buggy()) as served:
            peer = await served.peer()
            peer.send(b"hello")
            await peer.closed()

    with pytest.raises((AssertionError, RuntimeError)) as raised:
        world.run(scenario())
    assert error in (raised.value, raised.value.__cause__)
