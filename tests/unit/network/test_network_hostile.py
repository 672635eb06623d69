"""Hostile peers: others are served, and memory stays bounded."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from network_world import WORLDS, RawPeer, Served, World, framed, until


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    yield from WORLDS[request.param]()


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


def test_thousands_of_connects_leave_nothing_behind(world: World) -> None:
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


def test_half_open_connections_hold_no_buffers(world: World) -> None:
    async def scenario() -> None:
        async with Served(world) as served:
            peers = [await served.peer() for _ in range(300)]
            for peer in peers:
                peer.send(b"x" * 900)
            for peer in peers:
                await peer.answers(1)
            assert served.metrics.open_connections == 300
            assert world.server.tick.buffers.taken_bytes == 0

    world.run(scenario())


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
