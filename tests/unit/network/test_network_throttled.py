"""A connection whose client has to pause: what waits, what does not, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from network_world import WORLDS, Answering, Served, World, framed, until

from kdist.network.connection import Connection
from kdist.network.connection_state import CHANGE


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    yield from WORLDS[request.param]()


class Throttling(Answering):
    """Pauses the connection for `seconds` with each request that begins with `b"much"`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        super().on_frame(connection, frame)
        if bytes(frame).startswith(b"much"):
            connection.throttle(self.seconds)


def test_the_answer_is_sent_at_once_and_the_next_request_waits(world: World) -> None:
    async def scenario() -> None:
        handler = Throttling(0.3)
        async with Served(world, handler) as served:
            peer = await served.peer()
            peer.send(b"much", b"next")
            peer.send(b"last")
            began_s = world.loop.time()
            assert await peer.answers(1) == [b"much"]
            assert world.loop.time() - began_s < 0.25
            assert handler.seen == [b"much"]
            assert await peer.answers(3) == [b"much", b"next", b"last"]
            assert world.loop.time() - began_s >= 0.3

    world.run(scenario())


def test_another_connection_is_served_meanwhile(world: World) -> None:
    async def scenario() -> None:
        async with Served(world, Throttling(60)) as served:
            throttled, other = await served.peer(), await served.peer()
            throttled.send(b"much")
            assert await throttled.answers(1) == [b"much"]
            other.send(b"mine")
            assert await other.answers(1) == [b"mine"]
            throttled.transport.abort()

    world.run(scenario())


@pytest.mark.parametrize("how", ["close", "abort"])
def test_the_end_of_a_throttled_peer_is_noticed(world: World, how: str) -> None:
    async def scenario() -> None:
        handler = Throttling(60)
        async with Served(world, handler) as served:
            peer = await served.peer()
            peer.send(b"much")
            await peer.answers(1)
            getattr(peer.transport, how)()
            await until(lambda: served.metrics.open_connections == 0)
            assert len(handler.lost) == 1

    world.run(scenario())


def test_requests_of_a_throttled_peer_that_has_gone_are_served(world: World) -> None:
    async def scenario() -> None:
        handler = Throttling(1.5)
        async with Served(world, handler) as served:
            peer = await served.peer()
            peer.send(b"much", b"quiet")
            await peer.answers(1)
            peer.send(b"quiet, and last")
            peer.transport.close()
            await until(lambda: served.metrics.open_connections == 0)
            assert handler.seen == [b"much", b"quiet", b"quiet, and last"]

    world.run(scenario())


def test_a_pause_that_is_ended_early_is_over(world: World) -> None:
    async def scenario() -> None:
        handler = Throttling(60)
        async with Served(world, handler) as served:
            peer = await served.peer()
            peer.send(b"much", b"next")
            await peer.answers(1)
            handler.connected[0].end_throttle()
            assert await peer.answers(2) == [b"much", b"next"]

    world.run(scenario())


def test_a_pause_outlasts_what_else_has_stopped_the_connection(world: World) -> None:
    async def scenario() -> None:
        handler = Throttling(0.3)
        async with Served(world, handler) as served:
            peer = await served.peer()
            peer.send(b"park", b"next")
            await until(lambda: bool(handler.parked))
            (connection,) = handler.connected
            connection.throttle(0.3)
            connection.hold(CHANGE)
            slot, content = handler.parked.pop()
            slot.send((framed(content),))
            connection.end_hold(CHANGE)
            peer.send(b"last")
            await asyncio.sleep(0.1)
            assert b"last" not in handler.seen
            assert await peer.answers(3) == [b"park", b"next", b"last"]

    world.run(scenario())


def test_a_connection_that_closes_may_still_be_throttled(world: World) -> None:
    async def scenario() -> None:
        handler = Throttling(60)
        async with Served(world, handler) as served:
            peer = await served.peer()
            peer.send(b"much")
            await peer.answers(1)
            (connection,) = handler.connected
            connection.abort()
            connection.throttle(60)
            connection.end_throttle()
            await until(lambda: served.metrics.open_connections == 0)

    world.run(scenario())
