"""Connections whose peers have not proved who they are: bounded in number and in time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from network_world import (
    Answering,
    RawPeer,
    Served,
    TlsNetwork,
    World,
    simulated_tls_world,
    simulated_world,
    tls_world,
    until,
)

from kdist.network.connection import Connection
from kdist.network.listener import Bounds, ConnectionQuotas
from kdist.network.unproved import UnprovedLimits


@pytest.fixture(params=[tls_world, simulated_tls_world])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    yield from request.param()


@pytest.fixture
def simulated() -> Iterator[World]:
    yield from simulated_tls_world()


@pytest.fixture
def clear() -> Iterator[World]:
    yield from simulated_world()


class Proving(Answering):
    """Knows who it is as soon as a peer may be served."""

    def on_connect(self, connection: Connection) -> None:
        super().on_connect(connection)
        connection.prove()


def served(world: World, handler: Answering, **limits: int) -> Served:
    bounds = Bounds(ConnectionQuotas(), unproved=UnprovedLimits(**limits))
    return Served(world, handler, bounds)


async def silent(server: Served) -> RawPeer:
    """A peer that never begins the handshake."""
    network = server.world.client
    assert isinstance(network, TlsNetwork)
    return await network.connect_in_clear(RawPeer, server.world.host, server.port)


async def test_the_oldest_that_has_not_shaken_hands_makes_room(world: World) -> None:
    async with served(world, Proving(), most=2) as server:
        known = await server.peer()
        known.send(b"still here")
        assert await known.answers(1) == [b"still here"]
        first, second, third = [await silent(server) for _ in range(3)]
        await until(lambda: first.is_closed)
        assert server.metrics.unauthenticated_connections == 2
        assert server.metrics.unauthenticated_ended_connections == 1
        late = await server.peer()
        await until(lambda: second.is_closed)
        late.send(b"me too")
        assert await late.answers(1) == [b"me too"]
        assert not known.is_closed
        assert not third.is_closed
        assert server.metrics.unauthenticated_connections == 1


async def test_one_address_has_a_bound_of_its_own(clear: World) -> None:
    async with served(clear, Answering(), most=10, most_per_host=1) as server:
        began_s = clear.loop.time()
        first = await server.peer()
        second = await server.peer()
        await until(lambda: first.is_closed)
        assert clear.loop.time() - began_s < 1
        assert not second.is_closed


async def test_time_is_up_for_handshake_and_proof_together(simulated: World) -> None:
    loop = simulated.loop
    async with served(simulated, Answering(), time_ms=3_000) as server:
        began_s = loop.time()
        shaken, silent_peer = await server.peer(), await silent(server)
        await until(lambda: loop.time() >= began_s + 2)
        later = await server.peer()
        await until(lambda: shaken.is_closed and silent_peer.is_closed)
        assert 3 <= loop.time() - began_s < 3.5
        assert server.metrics.unauthenticated_ended_connections == 2
        await until(lambda: later.is_closed)
        assert 5 <= loop.time() - began_s < 5.5


async def test_who_has_proved_it_or_is_gone_is_counted_no_more(clear: World) -> None:
    async with served(clear, Answering(), most=3, time_ms=1_000) as server:
        gone, known = await server.peer(), await server.peer()
        await until(lambda: len(server.handler.connected) == 2)
        assert server.metrics.unauthenticated_connections == 2
        gone.transport.close()
        server.handler.connected[1].prove()
        server.handler.connected[1].prove()
        await until(lambda: server.metrics.unauthenticated_connections == 0)
        unproved = server.listener._unproved
        assert unproved is not None
        assert unproved._timer is None
        assert not unproved._of_host
        known.send(b"for ever")
        assert await known.answers(1) == [b"for ever"]
        idle_until_s = clear.loop.time() + 5
        await until(lambda: clear.loop.time() > idle_until_s)
        assert not known.is_closed
