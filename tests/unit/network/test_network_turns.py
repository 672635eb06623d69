"""Requests that take long: those of other connections get their turn between them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import monotonic

import pytest
from network_world import Answering, RawPeer, Served, World, framed, real_world, until

from kdist.network.connection import Connection
from kdist.runtime import tick_loop
from kdist.runtime.tick_loop import TickLoop

BURST = 40


class Clock:
    """The machine's, and the time that requests say they have taken."""

    def __init__(self) -> None:
        self.burnt_s = 0.0

    def now_s(self) -> float:
        return monotonic() + self.burnt_s


class Burning(Answering):
    """Takes a turn for each request that begins with `b"slow"`; the rest is quick for sure."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def on_frame(self, connection: Connection, frame: memoryview) -> bool:  # type: ignore[override]
        super().on_frame(connection, frame)
        is_slow = bytes(frame).startswith((b"slow", b"quiet slow"))
        if is_slow:
            self.clock.burnt_s += tick_loop.TURN_S
        return not is_slow


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def world(clock: Clock) -> Iterator[World]:
    yield from real_world(TickLoop(clock.now_s))


async def test_one_connections_burst_of_slow_requests_lets_another_connection_in(
    world: World, clock: Clock
) -> None:
    handler = Burning(clock)
    async with Served(world, handler) as served:
        hostile, healthy = await served.peer(), await served.peer()
        hostile.send(*[b"slow %d" % number for number in range(BURST)])
        healthy.send(b"healthy")
        assert await healthy.answers(1) == [b"healthy"]
        assert handler.seen.index(b"healthy") <= 3
        expected = [b"slow %d" % number for number in range(BURST)]
        assert await hostile.answers(BURST) == expected


async def test_bursts_of_several_connections_are_served_in_rotation(
    world: World, clock: Clock
) -> None:
    handler = Burning(clock)
    async with Served(world, handler) as served:
        peers = [await served.peer() for _ in range(4)]
        for number, peer in enumerate(peers):
            peer.send(*[b"slow %d" % number] * BURST)
        for peer in peers:
            await peer.answers(BURST)
        # A connection is never more than three requests ahead of another.
        counts = dict.fromkeys(set(handler.seen), 0)
        for content in handler.seen[: 3 * BURST]:
            counts[content] += 1
            assert max(counts.values()) - min(counts.values()) <= 3


async def test_answers_to_a_burst_of_slow_requests_are_sent_between_them(
    world: World, clock: Clock
) -> None:
    class Watching(Burning):
        def on_frame(self, connection: Connection, frame: memoryview) -> bool:  # type: ignore[override]
            unanswered.append(len(self.seen) - len(peers[0].ends()))
            return super().on_frame(connection, frame)

    unanswered: list[int] = []
    peers: list[RawPeer] = []
    async with Served(world, Watching(clock)) as served:
        peers.append(await served.peer())
        peers[0].send(*[b"slow"] * BURST)
        await peers[0].answers(BURST)
        assert max(unanswered) <= 3


async def test_requests_that_are_quick_for_sure_are_not_interrupted(
    world: World, clock: Clock
) -> None:
    class Counting(Burning):
        def on_frame(self, connection: Connection, frame: memoryview) -> bool:  # type: ignore[override]
            super().on_frame(connection, frame)
            return True

    handler = Counting(clock)
    async with Served(world, handler) as served:
        peer = await served.peer()
        peer.send(*[b"slow"] * BURST)
        await until(lambda: bool(handler.seen))
        assert len(handler.seen) == BURST


async def test_all_of_a_burst_is_served_though_its_peer_has_gone(
    world: World, clock: Clock
) -> None:
    handler = Burning(clock)
    async with Served(world, handler) as served:
        peer = await served.peer()
        peer.send(*[b"quiet slow"] * BURST)
        peer.transport.close()
        await until(lambda: served.metrics.open_connections == 0)
        assert handler.seen == [b"quiet slow"] * BURST


async def test_a_slow_request_that_cannot_be_understood_ends_its_connection_once(
    world: World, clock: Clock
) -> None:
    handler = Burning(clock)
    async with Served(world, handler) as served:
        peer = await served.peer()
        peer.send(b"slow", b"slow", b"bad", b"slow")
        await peer.closed()
        assert handler.seen == [b"slow", b"slow", b"bad"]
        assert peer.frames() == [b"slow", b"slow"]


async def test_slow_requests_are_not_handed_over_while_there_is_another_reason_to_wait(
    world: World, clock: Clock
) -> None:
    class Throttling(Burning):
        def on_frame(self, connection: Connection, frame: memoryview) -> bool:  # type: ignore[override]
            connection.throttle(0.2)
            return super().on_frame(connection, frame)

    handler = Throttling(clock)
    async with Served(world, handler) as served:
        peer = await served.peer()
        peer.send(b"slow", b"slow")
        await peer.answers(1)
        await asyncio.sleep(0.05)
        assert handler.seen == [b"slow"]
        handler.connected[0].end_throttle()
        await peer.answers(2)


async def test_files_that_take_long_to_send_leave_the_other_answers_to_later_ticks(
    world: World, clock: Clock
) -> None:
    """Each answer here is two chunks: the connection sends it by itself, not the tick."""
    sent: list[int] = []
    async with Served(world) as served:
        peers = [await served.peer() for _ in range(3)]
        for number, peer in enumerate(peers):
            peer.send(b"park %d" % number)
        handler = served.handler
        await until(lambda: len(handler.parked) == 3)
        for connection in handler.connected:
            _slow_down(connection, clock, sent, handler.connected.index(connection))
        for slot, content in handler.parked:
            slot.send((framed(content)[:4], framed(content)[4:]))
        await asyncio.sleep(0)
        assert len(sent) < 3
        for number, peer in enumerate(peers):
            assert await peer.answers(1) == [b"park %d" % number]
        assert sent == [0, 1, 2]


def _slow_down(connection: Connection, clock: Clock, sent: list[int], number: int) -> None:
    begin_writing = connection.begin_writing

    def slowly() -> object:
        sent.append(number)
        clock.burnt_s += tick_loop.TURN_S
        return begin_writing()

    connection.begin_writing = slowly  # type: ignore[method-assign, assignment]
