"""A broker with several listeners: their common limit of connections."""

from __future__ import annotations

import asyncio

import pytest

from kdist.broker.broker import Broker
from kdist.network.client import Client, ClientSettings
from tests.simulator.cluster import Cluster

LISTENERS = {
    "listeners": "BROKERS://:9091,INSIDE://:9092,OUTSIDE://:9093",
    "listener_security_protocol_map": "BROKERS:PLAINTEXT,INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
}
LIMIT = 10


async def connected(cluster: Cluster, broker: Broker, *ports: int) -> list[bool]:
    """Whether a connection to each port, one after the other, was taken."""
    host = cluster.network.host("client")
    found: list[bool] = []
    for port in ports:
        before = broker.measures.network.refused_connections
        await Client.connect(host, "m1", port, ClientSettings("tests"))
        await asyncio.sleep(0.1)
        found.append(broker.measures.network.refused_connections == before)
    return found


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_ip"])
async def test_the_connection_limit_covers_all_client_listeners_together(
    cluster: Cluster, limit: str
) -> None:
    broker = await cluster.started(**LISTENERS, **{limit: str(LIMIT)})
    left = LIMIT
    if limit == "max_connections":
        left -= broker.measures.network.open_connections
    taken = await connected(cluster, broker, *[9092, 9093] * (left // 2 + 1))
    assert taken == [True] * left + [False] * (len(taken) - left)


async def test_too_many_clients_do_not_keep_brokers_off_their_own_listener(
    cluster: Cluster,
) -> None:
    broker = await cluster.started(**LISTENERS, max_connections="2")
    assert await connected(cluster, broker, 9092, 9092, 9091) == [True, False, True]


async def test_a_shared_listener_limits_brokers_and_clients_alike(cluster: Cluster) -> None:
    broker = await cluster.started(max_connections="2")
    assert await connected(cluster, broker, 9092, 9092) == [True, False]
