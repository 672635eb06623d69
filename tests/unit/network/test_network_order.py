"""Requests that must see earlier ones done, or whose client has to pause: what waits for what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from network_world import Answering, RawPeer, Served, World, framed, until

from kdist.network.connection import Connection, Limits
from kdist.network.connection_state import (
    CHANGE,
    CLOSED,
    FINISHING,
    FOLLOWERS,
    LIMIT,
    PRODUCES,
    TURN,
    ConnectionState,
    Reason,
)
from kdist.network.receiving import NotYet


class Changing(Answering):
    """Holds a connection at each request to park."""

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        super().on_frame(connection, frame)
        if bytes(frame).startswith(b"park"):
            connection.hold(CHANGE)


class Throttling(Answering):
    """Pauses the connection for `seconds` with each request that begins with `b"much"`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        super().on_frame(connection, frame)
        if bytes(frame).startswith(b"much"):
            connection.throttle(self.seconds)


async def test_a_held_connection_hands_over_no_request_until_the_reason_is_gone(
    world: World,
) -> None:
    async with Served(world, Changing()) as served:
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
        served.handler.connected[0].end_hold(CHANGE)
        assert (await peer.answers(5))[2:] == [b"second", b"x" * 300_000, b"third"]
        assert served.metrics.held_connections == 0


async def test_a_frame_refused_behind_a_held_request_ends_the_connection_after_its_answer(
    world: World,
) -> None:
    async with Served(world, Changing()) as served:
        peer, handler = await served.peer(), served.handler
        peer.transport.write(framed(b"park") + b"\x7f\xff\xff\xff" + bytes(1000))
        await until(lambda: bool(handler.parked))
        handler.parked[0][0].send((framed(b"parked"),))
        handler.connected[0].end_hold(CHANGE)
        assert await peer.answers(1) == [b"parked"]
        await peer.closed()
        assert served.metrics.failed_connections == 1
        assert world.server.tick.buffers.taken_bytes == 0


class Keeping(Answering):
    """Parked requests stand for produces under way; all others must see them done."""

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        if connection.pending_produces and frame[:4] != b"park":
            raise NotYet(PRODUCES)
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


async def test_a_request_and_those_behind_it_wait_for_all_late_ones(world: World) -> None:
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


class Holding(Answering):
    """Holds a connection, for one reason, at each request that begins with `park and hold`."""

    def __init__(self, reason: Reason) -> None:
        super().__init__()
        self.reason = reason

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        super().on_frame(connection, frame)
        if bytes(frame).startswith(b"park and hold"):
            connection.hold(self.reason)


REASONS = [each for each in Reason if each not in (LIMIT, TURN)]  # these two end by themselves


@pytest.mark.parametrize("reason", REASONS)
async def test_answers_that_end_a_limit_end_no_other_hold_that_began_with_it(
    world: World, reason: Reason
) -> None:
    """The request that holds the connection is the last that the limit allows."""
    async with Served(world, handler := Holding(reason)) as served:
        served.listener.limits = Limits(in_flight_max=3)
        peer = await served.peer()
        peer.send(b"park 1", b"park 2", b"park and hold", b"next")
        await until(lambda: len(handler.parked) == 3)
        for slot, content in handler.parked[:2]:
            slot.send((framed(content),))
        assert await peer.answers(2) == [b"park 1", b"park 2"]
        await asyncio.sleep(0.05)
        assert b"next" not in handler.seen
        handler.parked[2][0].send((framed(b"held"),))
        handler.connected[0].end_hold(reason)
        assert (await peer.answers(4))[2:] == [b"held", b"next"]


@pytest.mark.parametrize("reason", REASONS)
async def test_a_hold_that_ends_lets_no_request_pass_a_limit_that_began_with_it(
    world: World, reason: Reason
) -> None:
    async with Served(world, handler := Holding(reason)) as served:
        served.listener.limits = Limits(in_flight_max=2)
        peer = await served.peer()
        peer.send(b"park 1", b"park and hold", b"next")
        await until(lambda: len(handler.parked) == 2)
        handler.connected[0].end_hold(reason)
        await asyncio.sleep(0.05)
        assert b"next" not in handler.seen
        handler.parked[0][0].send((framed(b"park 1"),))
        await until(lambda: b"next" in handler.seen)


async def test_a_hold_that_ends_lets_no_request_pass_bytes_that_were_answered_meanwhile(
    world: World,
) -> None:
    async with Served(world, handler := Holding(CHANGE)) as served:
        peer = await served.peer()
        peer.send(b"park 1", b"park and hold", b"next")
        await until(lambda: len(handler.parked) == 2)
        peer.transport.pause_reading()
        handler.parked[0][0].send((framed(b"x" * (16 << 20)),))
        await asyncio.sleep(0.05)
        handler.connected[0].end_hold(CHANGE)
        await asyncio.sleep(0.05)
        assert b"next" not in handler.seen
        peer.transport.resume_reading()
        await until(lambda: b"next" in handler.seen)


async def test_unsent_bytes_of_an_earlier_answer_end_no_hold(world: World) -> None:
    """Both begin with one request: an earlier one is answered with more than the limit in it."""

    class Answered(Holding):
        def on_frame(self, connection: Connection, frame: memoryview) -> None:
            super().on_frame(connection, frame)
            if bytes(frame).startswith(b"park and hold"):
                self.parked[0][0].send((framed(b"x" * 100_000),))

    async with Served(world, handler := Answered(CHANGE)) as served:
        served.listener.limits = Limits(waiting_bytes_max=50_000)
        peer = await served.peer()
        peer.send(b"park 1", b"park and hold", b"next")
        assert await peer.answers(1) == [b"x" * 100_000]
        await asyncio.sleep(0.05)
        assert b"next" not in handler.seen
        assert served.metrics.held_connections == 1
        handler.connected[0].end_hold(CHANGE)
        await until(lambda: b"next" in handler.seen)


async def test_a_waiting_request_that_is_refused_ends_its_connection(world: World) -> None:
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


async def test_a_waiting_request_is_dropped_with_its_connection(world: World) -> None:
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


async def test_a_held_connection_that_is_finishing_hands_over_nothing_more(world: World) -> None:
    async with Served(world, Changing()) as served:
        peer, handler = await served.peer(), served.handler
        peer.transport.write(framed(b"park") + framed(b"behind it"))
        await until(lambda: handler.parked)
        connection = handler.connected[0]
        connection.finish()
        handler.parked[0][0].send((framed(b"parked"),))
        connection.end_hold(CHANGE)
        await peer.closed()
        assert handler.seen == [b"park"]


async def test_a_connection_that_has_ended_enters_no_other_state(world: World) -> None:
    async with Served(world) as served:
        peer, handler = await served.peer(), served.handler
        await until(lambda: handler.connected)
        connection = handler.connected[0]
        connection.close()
        await peer.closed()
        for change in (
            *(partial(connection.hold, reason) for reason in Reason),
            *(partial(connection.end_hold, reason) for reason in Reason),
            connection.finish_soon,
            connection.close,
        ):
            change()
            assert connection.state is CLOSED
        assert connection._end_timer is None


def test_every_state_but_the_last_two_leaves_for_both_of_these() -> None:
    for state in ConnectionState:
        ends = [each for each in (FINISHING, CLOSED) if each > state]
        assert [each for each in FOLLOWERS[state] if each >= FINISHING] == ends


async def test_a_connection_has_few_enough_attributes_for_a_key_sharing_dict(world: World) -> None:
    """From 30 on (CPython 3.11) each has a dict of its own: 1.3 KB more, and slower to look up."""
    async with Served(world) as served:
        await served.peer()
        await until(lambda: served.handler.connected)
        assert len(vars(served.handler.connected[0])) < 30


async def test_the_answer_is_sent_at_once_and_the_next_request_waits(world: World) -> None:
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


@asynccontextmanager
async def throttled(
    world: World, *behind: bytes, seconds: float = 60
) -> AsyncIterator[tuple[Served, RawPeer]]:
    """A peer that has its answer and must pause, with requests `behind` that one."""
    async with Served(world, Throttling(seconds)) as served:
        peer = await served.peer()
        peer.send(b"much", *behind)
        assert await peer.answers(1) == [b"much"]
        yield served, peer


async def test_another_connection_is_served_meanwhile(world: World) -> None:
    async with throttled(world) as (served, peer):
        other = await served.peer()
        other.send(b"mine")
        assert await other.answers(1) == [b"mine"]
        peer.transport.abort()


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_the_end_of_a_throttled_peer_is_noticed(world: World, how: str) -> None:
    async with throttled(world) as (served, peer):
        getattr(peer.transport, how)()
        await until(lambda: served.metrics.open_connections == 0)
        assert len(served.handler.lost) == 1


async def test_requests_of_a_throttled_peer_that_has_gone_are_served(world: World) -> None:
    async with throttled(world, b"quiet", seconds=1.5) as (served, peer):
        peer.send(b"quiet, and last")
        peer.transport.close()
        await until(lambda: served.metrics.open_connections == 0)
        assert served.handler.seen == [b"much", b"quiet", b"quiet, and last"]


async def test_a_pause_that_is_ended_early_is_over(world: World) -> None:
    async with throttled(world, b"next") as (served, peer):
        served.handler.connected[0].end_throttle()
        assert await peer.answers(2) == [b"much", b"next"]


async def test_a_pause_outlasts_what_else_has_stopped_the_connection(world: World) -> None:
    handler = Answering()
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


async def test_a_connection_that_closes_may_still_be_throttled(world: World) -> None:
    async with throttled(world) as (served, _):
        (connection,) = served.handler.connected
        connection.abort()
        connection.throttle(60)
        connection.end_throttle()
        await until(lambda: served.metrics.open_connections == 0)
