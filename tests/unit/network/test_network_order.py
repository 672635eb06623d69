"""Requests that must see earlier ones done are handed over once these are, and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from network_world import WORLDS, Answering, RawPeer, Served, World, framed, until

from kdist.network.connection import Connection
from kdist.network.connection_state import CLOSED, FINISHING, FOLLOWERS, ConnectionState
from kdist.network.receiving import NotYet


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    yield from WORLDS[request.param]()


class Muting(Answering):
    """Mutes a connection at each request to park."""

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        super().on_frame(connection, frame)
        if bytes(frame).startswith(b"park"):
            connection.mute()


def test_a_muted_connection_hands_over_no_request_until_it_is_unmuted(world: World) -> None:
    async def scenario() -> None:
        async with Served(world, Muting()) as served:
            peer, seen = await served.peer(), served.handler.seen
            peer.send(b"first", b"park", b"second", b"x" * 300_000)
            await until(lambda: b"park" in seen)
            peer.send(b"third")
            assert await peer.answers(1) == [b"first"]
            await asyncio.sleep(0.05)
            assert seen == [b"first", b"park"]
            served.handler.parked[0][0].send((framed(b"parked"),))
            assert await peer.answers(2) == [b"first", b"parked"]
            assert seen == [b"first", b"park"]
            served.handler.connected[0].unmute()
            assert (await peer.answers(5))[2:] == [b"second", b"x" * 300_000, b"third"]
            assert served.metrics.paused_connections == 0

    world.run(scenario())


class Keeping(Answering):
    """Parked requests stand for produces under way; all others must see them done."""

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        if connection.pending_produces and frame[:4] != b"park":
            raise NotYet
        super().on_frame(connection, frame)
        if frame[:4] == b"park":
            connection.pending_produces += 1

    def end(self) -> None:
        """Complete the oldest parked request."""
        reply, content = self.parked.pop(0)
        reply.send((framed(content),))
        self.connected[0].end_pending_produce()


async def parked(handler: Keeping, peer: RawPeer, *behind: bytes) -> None:
    """Send two such requests, and others behind them."""
    peer.send(b"park 1", b"park 2", *behind)
    await until(lambda: len(handler.parked) == 2)
    await asyncio.sleep(0.02)


def test_a_request_and_those_behind_it_wait_for_all_late_ones(world: World) -> None:
    async def scenario() -> None:
        handler = Keeping()
        async with Served(world, handler) as served:
            peer, large = await served.peer(), b"x" * 300_000
            await parked(handler, peer, b"first", b"park 3", b"second", large)
            peer.send(b"third")
            handler.end()
            assert await peer.answers(1) == [b"park 1"]
            await asyncio.sleep(0.02)
            assert handler.seen == [b"park 1", b"park 2"]
            handler.end()
            await until(lambda: handler.parked)  # its like goes through, and is waited for anew
            assert await peer.answers(3) == [b"park 1", b"park 2", b"first"]
            await asyncio.sleep(0.02)
            assert handler.seen[2:] == [b"first", b"park 3"]
            handler.end()
            assert (await peer.answers(7))[3:] == [b"park 3", b"second", large, b"third"]
            assert handler.connected[0].pending_produces == 0

    world.run(scenario())


def test_a_waiting_request_that_is_refused_ends_its_connection(world: World) -> None:
    async def scenario() -> None:
        handler = Keeping()
        async with Served(world, handler) as served:
            peer = await served.peer()
            await parked(handler, peer, b"bad", b"never seen")
            assert not peer.is_closed
            handler.end()
            handler.end()
            await peer.closed()
            assert peer.frames() == [b"park 1", b"park 2"]
            assert handler.seen[2:] == [b"bad"]
            assert served.metrics.failed_connections == 1

    world.run(scenario())


def test_a_waiting_request_is_dropped_with_its_connection(world: World) -> None:
    async def scenario() -> None:
        handler = Keeping()
        async with Served(world, handler) as served:
            peer = await served.peer()
            await parked(handler, peer, b"first")
            handler.connected[0].close()
            await peer.closed()
            handler.end()
            handler.end()
            await asyncio.sleep(0.02)
            assert handler.seen == [b"park 1", b"park 2"]

    world.run(scenario())


def test_a_muted_connection_that_is_finishing_hands_over_nothing_more(world: World) -> None:
    async def scenario() -> None:
        async with Served(world, Muting()) as served:
            peer, handler = await served.peer(), served.handler
            peer.transport.write(framed(b"park") + framed(b"behind it"))
            await until(lambda: handler.parked)
            connection = handler.connected[0]
            connection.finish()
            handler.parked[0][0].send((framed(b"parked"),))
            connection.unmute()
            await peer.closed()
            assert handler.seen == [b"park"]

    world.run(scenario())


def test_a_connection_that_has_ended_enters_no_other_state(world: World) -> None:
    async def scenario() -> None:
        async with Served(world) as served:
            peer, handler = await served.peer(), served.handler
            await until(lambda: handler.connected)
            connection = handler.connected[0]
            connection.close()
            await peer.closed()
            for change in (
                connection.mute,
                connection.unmute,
                connection.finish_soon,
                connection.close,
            ):
                change()
                assert connection.state is CLOSED
            assert connection._end_timer is None

    world.run(scenario())


def test_every_state_but_the_last_two_leaves_for_both_of_these() -> None:
    for state in ConnectionState:
        ends = [each for each in (FINISHING, CLOSED) if each > state]
        assert [each for each in FOLLOWERS[state] if each >= FINISHING] == ends


def test_a_connection_has_few_enough_attributes_for_a_key_sharing_dict(world: World) -> None:
    """From 30 on (CPython 3.11) each has a dict of its own: 1.3 KB more, and slower to look up."""

    async def scenario() -> None:
        async with Served(world) as served:
            await served.peer()
            await until(lambda: served.handler.connected)
            assert len(vars(served.handler.connected[0])) < 30

    world.run(scenario())
