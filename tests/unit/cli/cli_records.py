"""Batches written to a topic as they are, for tests that need times, headers or nulls."""

from __future__ import annotations

import asyncio

from kdist.client.cluster import Cluster, parse_addresses
from kdist.client.produce_once import produce
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from kdist.network.network import AsyncioNetwork


def write(address: str, topic: str, partition: int, batch: bytearray) -> None:
    """Append one batch."""

    async def append() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        cluster = Cluster(network, parse_addresses(address), ClientSettings(client_id="test"))
        await produce(cluster, {TopicPartition(topic, partition): batch})
        cluster.close()

    asyncio.run(append())
