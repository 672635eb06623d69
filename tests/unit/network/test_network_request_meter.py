"""What a client's connections count: requests by API, their latency, pauses, endings."""

from __future__ import annotations

import asyncio

import pytest
from network_broker import Broker, connect, heartbeat
from network_world import Served, World, until

from kdist.metrics.clients import ClientBrokerMetrics, ConnectionFamilies


def only(families: ConnectionFamilies) -> ClientBrokerMetrics:
    (broker,) = families.brokers.values()
    return broker


async def test_answers_count_by_api_and_pauses_by_broker(world: World) -> None:
    families = ConnectionFamilies.empty()
    async with Served(world, Broker()) as served:
        client = await connect(served, metrics=families)
        assert only(families).open_connections == 1
        for throttle_ms in (0, 200):
            await client.send(heartbeat(throttle_ms), 1)
        client.close()
    (requests,) = (found for (_, api), found in families.requests.items() if api == "Heartbeat")
    assert (requests.seconds.count, requests.failed) == (2, 0)
    assert only(families).throttled_seconds == pytest.approx(0.2)
    assert (only(families).open_connections, only(families).lost_connections) == (0, 0)


async def test_what_was_in_flight_when_a_connection_ended_has_failed(world: World) -> None:
    families, broker = ConnectionFamilies.empty(), Broker()
    async with Served(world, broker) as served:
        client = await connect(served, metrics=families)
        asked = [asyncio.ensure_future(client.send(heartbeat(n, "later"), 1)) for n in range(3)]
        await until(lambda: len(broker.waiting) == 3)
        assert only(families).requests_in_flight == 3
    await asyncio.wait(asked)
    assert all(each.exception() for each in asked)
    (requests,) = (found for (_, api), found in families.requests.items() if api == "Heartbeat")
    assert (requests.seconds.count, requests.failed) == (0, 3)
    assert only(families).requests_in_flight == 0
    assert (only(families).open_connections, only(families).lost_connections) == (0, 1)
