"""Limits of connections, closing of idle ones, and hostile peers: memory stays bounded."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest
from network_world import Answering, RawPeer, Served, World, framed, simulated_world, until

from kdist.config.security import ListenerLimits
from kdist.network.connection import Connection, Limits
from kdist.network.listener import Bounds, ConnectionQuotas, Listener


@pytest.fixture
def simulated() -> Iterator[World]:
    yield from simulated_world()


def from_host(listener: Listener, host: str) -> Connection:
    """A connection that is not made yet, of a peer at that address."""
    connection = Connection(listener)
    connection.host = host
    return connection


async def send_garbage(peer: RawPeer, rng: random.Random) -> None:
    kind = rng.randrange(4)
    if kind == 0:
        peer.transport.write(rng.randbytes(rng.randrange(1, 2000)))
    elif kind == 1:
        whole = framed(rng.randbytes(rng.randrange(1, 5000)))
        peer.transport.write(whole[: rng.randrange(1, len(whole))])
    elif kind == 2:
        peer.transport.write(rng.randrange(1 << 31).to_bytes(4, "big") + b"x")
    else:
        peer.send(b"good", b"bad", b"unseen")


async def test_a_connection_over_max_connections_is_closed_at_once(clear_world: World) -> None:
    async with Served(clear_world, max_connections=2) as served:
        first, second = await served.peer(), await served.peer()
        third = await served.peer()
        await third.closed()
        assert served.metrics.refused_connections == 1
        first.send(b"still here")
        assert await first.answers(1) == [b"still here"]
        second.transport.close()
        await until(lambda: served.metrics.open_connections == 1)
        fourth = await served.peer()
        fourth.send(b"room again")
        assert await fourth.answers(1) == [b"room again"]


async def test_a_connection_over_the_limit_of_its_address_is_closed(clear_world: World) -> None:
    async with Served(clear_world, max_connections_per_ip=1) as served:
        first, second = await served.peer(), await served.peer()
        await second.closed()
        first.send(b"one is allowed")
        assert await first.answers(1) == [b"one is allowed"]
        assert served.metrics.refused_connections == 1


async def test_an_address_may_have_a_limit_of_its_own(simulated: World) -> None:
    given = ("::ffff:0a00:0001:2", "10.0.0.2:1")
    async with Served(
        simulated, max_connections_per_ip=3, max_connections_per_ip_overrides=given
    ) as served:
        admitted = served.listener.admit
        for host, most in (("10.0.0.1", 2), ("::ffff:10.0.0.2", 1), ("10.0.0.3", 3)):
            found = [admitted(from_host(served.listener, host)) for _ in range(4)]
            assert [bool(each) for each in found] == [True] * most + [False] * (4 - most)
        served.listener.connections.clear()
        served.listener._is_empty.set()


async def test_a_listeners_own_limit_holds_besides_the_brokers(world: World) -> None:
    bounds = Bounds(ConnectionQuotas(), ListenerLimits(max_connections=1), is_spared=True)
    async with Served(world, bounds=bounds) as served:
        first = await served.peer()
        with suppress(OSError):  # under TLS it is refused before it is connected
            await (await served.peer()).closed()
        assert not first.is_closed
        assert served.metrics.refused_connections == 1


async def test_connections_above_the_rate_wait_for_the_next_second(simulated: World) -> None:
    loop = simulated.loop
    async with Served(simulated, max_connection_creation_rate=3) as served:
        await asyncio.sleep(1 - loop.time() % 1)
        start_s = loop.time()
        taken_s: list[float] = []

        async def connect() -> None:
            await served.peer()
            taken_s.append(loop.time() - start_s)

        await asyncio.gather(*(connect() for _ in range(8)))
        assert [int(each) for each in taken_s] == [0, 0, 0, 1, 1, 1, 2, 2]
        assert not served.metrics.refused_connections


async def test_the_brokers_rate_is_over_all_listeners_but_the_brokers_own(
    simulated: World,
) -> None:
    shared = Bounds(ConnectionQuotas())
    rate = {"max_connection_creation_rate": 2}
    async with (
        Served(simulated, bounds=shared, **rate) as first,
        Served(simulated, bounds=shared, **rate) as second,
        Served(simulated, bounds=shared._replace(is_spared=True), **rate) as spared,
    ):
        await asyncio.sleep(1 - simulated.loop.time() % 1)
        await first.peer()
        await second.peer()
        assert first.listener._wait_s() > 0
        assert second.listener._wait_s() > 0
        assert not spared.listener._wait_s()


async def test_a_listeners_own_rate_is_its_alone(simulated: World) -> None:
    shared = Bounds(ConnectionQuotas())
    own = shared._replace(own=ListenerLimits(max_connection_creation_rate=1), is_spared=True)
    async with (
        Served(simulated, bounds=own) as slow,
        Served(simulated, bounds=shared) as other,
    ):
        await asyncio.sleep(1 - simulated.loop.time() % 1)
        await slow.peer()
        assert slow.listener._wait_s() > 0
        assert not other.listener._wait_s()


async def test_a_connection_that_has_to_wait_is_accepted_later(world: World) -> None:
    waits_s = [0.01, 0.01]
    made: list[RawPeer] = []

    def make() -> RawPeer:
        made.append(RawPeer())
        return made[-1]

    server = await world.server.listen(
        make, world.host, 0, wait_s=lambda: waits_s.pop() if waits_s else 0.0
    )
    peer = await world.client.connect(RawPeer, world.host, server.port)
    await until(lambda: bool(made))
    assert not waits_s
    server.close()
    peer.transport.close()
    await until(lambda: made[0].is_closed)


async def test_idle_and_unfinished_connections_time_out_and_waiting_ones_do_not(
    world: World,
) -> None:
    async with Served(world, connections_max_idle_ms=200) as served:
        idle, unfinished, waiting, dripping = [await served.peer() for _ in range(4)]
        unfinished.transport.write(framed(b"x" * 100)[:50])
        waiting.send(b"park")
        while not (idle.is_closed and unfinished.is_closed and dripping.is_closed):
            if not dripping.is_closed:
                dripping.transport.write(b"\x00")  # the size of a frame, then a frame's bytes
                dripping.transport.write(b"\x00\x01\x00")
            await asyncio.sleep(0.05)
        assert not waiting.is_closed
        served.handler.parked[0][0].send((framed(b"late"),))
        assert await waiting.answers(1) == [b"late"]
        await waiting.closed()
        assert served.metrics.idle_connections == 4


async def test_a_peer_that_reads_nothing_for_the_idle_time_is_closed(world: World) -> None:
    class Huge(Answering):
        def on_frame(self, connection: Connection, frame: memoryview) -> None:
            connection.reserve().send((framed(bytes(32 << 20)),))

    async with Served(world, Huge(), connections_max_idle_ms=200) as served:
        peer = await served.peer()
        peer.transport.pause_reading()
        peer.send(b"x")
        await until(lambda: served.metrics.idle_connections == 1)
        await until(lambda: served.metrics.open_connections == 0)


def limited(served: Served) -> None:
    """Requests that begin with `sm` may have 1000 bytes, all others 2,000,000."""
    key = int.from_bytes(b"sm", "big")
    served.listener.limits = Limits(request_bytes_max=lambda of: 1000 if of == key else 2_000_000)


@pytest.mark.parametrize("sent", [2, 3, 500])
async def test_a_request_too_large_for_its_api_is_refused_before_it_is_received(
    world: World, sent: int
) -> None:
    async with Served(world) as served:
        limited(served)
        peer = await served.peer()
        peer.send(b"sm", b"large")
        assert await peer.answers(2) == [b"sm", b"large"]
        peer.transport.write(struct.pack(">i", 1001) + (b"sm" * sent)[:sent])
        await peer.closed()
        assert served.metrics.failed_connections == 1
        assert served.handler.seen == [b"sm", b"large"]


async def test_the_limit_of_an_api_holds_for_requests_that_come_byte_by_byte(world: World) -> None:
    async with Served(world) as served:
        limited(served)
        peer = await served.peer()
        for byte in struct.pack(">i", 1001) + b"s":
            peer.transport.write(bytes([byte]))
            await asyncio.sleep(0.005)
        assert not peer.is_closed
        peer.transport.write(b"m")
        await peer.closed()


async def test_a_request_as_large_as_its_api_allows_is_handed_over(world: World) -> None:
    async with Served(world) as served:
        limited(served)
        peer = await served.peer()
        peer.send(*(contents := [b"sm" * 500, b"x" * 2_000_000, b"sm" * 500]))
        await until(lambda: served.handler.seen == contents)


async def test_no_api_may_have_more_than_the_setting_allows(world: World) -> None:
    async with Served(world, socket_request_max_bytes=200_000) as served:
        peer = await served.peer()
        peer.transport.write(struct.pack(">ih", 200_001, 0))  # a produce
        await peer.closed()


def test_random_bytes_end_their_connection_and_others_are_served(world: World) -> None:
    rng = random.Random(7)

    async def scenario() -> None:
        async with Served(world, socket_request_max_bytes=100_000) as served:
            good = await served.peer()
            for n in range(1, 151):
                bad = await served.peer()
                await send_garbage(bad, rng)
                good.send(b"%d" % n)
                await good.answers(n)
                if rng.random() < 0.8:
                    bad.transport.abort()
            assert good.frames() == [b"%d" % n for n in range(1, 151)]
            assert b"unseen" not in served.handler.seen
            # The survivors hold unfinished frames, each no more than four times what it sent.
            open_now = served.metrics.open_connections
            assert world.server.tick.buffers.taken_bytes <= open_now * 4 * 8192

    world.run(scenario())
    buffers = world.server.tick.buffers
    assert buffers.taken_bytes == 0
    assert buffers.free_bytes <= 1 << 20


def test_thousands_of_connects_leave_nothing_behind(clear_world: World) -> None:
    world = clear_world

    async def scenario() -> None:
        async with Served(world) as served:
            good = await served.peer()
            for n in range(2000):
                peer = await served.peer()
                if n % 2:
                    peer.transport.write(b"\x00\x00")
                peer.transport.abort()
            await until(lambda: served.metrics.open_connections == 1)
            good.send(b"hello")
            assert await good.answers(1) == [b"hello"]
            assert len(served.listener.connections) == 1
            assert served.listener.quotas.hosts == {good.transport.get_extra_info("sockname")[0]: 1}

    world.run(scenario())
    assert world.server.tick.buffers.taken_bytes == 0


async def test_half_open_connections_hold_no_buffers(world: World) -> None:
    async with Served(world) as served:
        peers = [await served.peer() for _ in range(300)]
        for peer in peers:
            peer.send(b"x" * 900)
        for peer in peers:
            await peer.answers(1)
        assert served.metrics.open_connections == 300
        assert world.server.tick.buffers.taken_bytes == 0


def test_answers_for_a_peer_that_never_reads_are_bounded(world: World) -> None:
    async def scenario() -> None:
        async with Served(world) as served:
            bad, good = await served.peer(), await served.peer()
            bad.transport.pause_reading()
            for _ in range(200):
                bad.send(b"y" * 100_000)
            await until(lambda: served.metrics.held_connections >= 1)
            for n in range(1, 50):
                good.send(b"%d" % n)
                await good.answers(n)
            connection = served.handler.connected[0]
            assert connection._sender.waiting_bytes <= 2 << 20
            assert len(served.handler.seen) < 200

    world.run(scenario())
    assert world.server.tick.buffers.taken_bytes == 0
