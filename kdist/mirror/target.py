"""A mirror flow's connections to its target: one to each leader, for produce requests only.

Requests are written at once, in the order in which they are posted, even if the socket's buffer is
full: a stream's batches must not overtake each other. The callers bound what a connection buffers.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, cast

from kdist.client.cluster import Address, Cluster, raise_for
from kdist.client.offsets import find_ranges
from kdist.client.produce_once import ACKS_ALL
from kdist.errors import ApiError, Error
from kdist.mirror.joined import Joined
from kdist.mirror.lag import ask_ranges_once
from kdist.mirror.rewritten_batch import RewrittenBatch
from kdist.model import NO_LEADER, OffsetRange, TopicPartition
from kdist.network.client import Client, ClientSettings
from kdist.network.network import Network
from kdist.protocol import produce
from kdist.protocol.produce import (
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceTopic,
)
from kdist.wire.primitives import Buffer

RETRY_MS = 2_000  # errors that pass sooner, as a new topic's missing leader, are not logged
_ACKNOWLEDGE_MS = 20_000  # how long the target's broker may wait for its replicas
_VERSION_MIN = 3  # the first version with record batches
_LIMITS = {
    Error.MESSAGE_TOO_LARGE.code: "max.message.bytes",
    Error.RECORD_LIST_TOO_LARGE.code: "segment.bytes",
}
"""The topic's setting that a refused batch exceeds, by the broker's error."""


class ProduceConnection(Client):
    """A connection to one broker."""

    def post(self, partition: TopicPartition, batch: Buffer) -> asyncio.Future[Any]:
        """Send one batch. The future has the `ProduceResponse`, which `result_of` reads.

        `ApiError` if the broker is too old.
        """
        version = self.version_of(produce.API)
        if version < _VERSION_MIN:
            raise ApiError(Error.UNSUPPORTED_VERSION, f"{self.name} accepts no record batches")
        part = ProducePartition(index=partition.partition, records=batch)
        request = ProduceRequest(
            acks=ACKS_ALL,
            timeout_ms=_ACKNOWLEDGE_MS,
            topic_data=[ProduceTopic(name=partition.topic, partition_data=[part])],
        )
        return self.ask(request, version)


def result_of(
    answered: asyncio.Future[Any], partition: TopicPartition, rewritten: RewrittenBatch
) -> ProducePartitionResult:
    """The broker's result for a posted batch; `ApiError` if it refused the batch."""
    (topic,) = answered.result().responses
    (result,) = cast(Sequence[ProducePartitionResult], topic.partition_responses)
    limit = _LIMITS.get(result.error_code)
    if limit is not None:
        raise ApiError(
            Error.of(result.error_code),
            f"{partition} of the target refuses the batch that ends at source offset"
            f" {rewritten.end}: raise {limit} of topic {partition.topic} in the target to the"
            f" source's value, at least {len(rewritten)}, and restart the mirror",
        )
    raise_for(result.error_code, str(partition), result.error_message)
    return result


class Target:
    """The target. `cluster` has connections of its own for all other requests. Owner: the loop."""

    def __init__(
        self, network: Network, bootstrap: Sequence[Address], settings: ClientSettings
    ) -> None:
        self.cluster = Cluster(network, bootstrap, settings, RETRY_MS)
        self._network = network
        self._settings = settings
        self._connections: dict[Address, ProduceConnection] = {}
        self._locks: defaultdict[Address, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._joined_offsets: defaultdict[
            int, Joined[TopicPartition, None, dict[TopicPartition, OffsetRange]]
        ] = defaultdict(lambda: Joined(self._ask_offsets))

    async def connection(self, partition: TopicPartition) -> ProduceConnection:
        """The connection to a partition's leader, opened if need be. `ApiError`, `NoBroker`."""
        cluster = self.cluster
        if cluster.leaders.get(partition, NO_LEADER) == NO_LEADER:
            await cluster.metadata([partition.topic])
        leader = cluster.leaders.get(partition, NO_LEADER)
        if leader == NO_LEADER:
            raise ApiError(Error.LEADER_NOT_AVAILABLE, f"{partition} of the target has no leader")
        address = cluster.brokers.get(leader)
        if address is None:
            raise ApiError(Error.NETWORK_EXCEPTION, f"there is no broker {leader}")
        async with self._locks[address]:
            connection = self._connections.get(address)
            if connection is None or connection.is_closed:
                connection = await ProduceConnection.connect_negotiated(
                    self._network, *address, self._settings
                )
                self._connections[address] = connection
            return connection

    async def offsets(self, partition: TopicPartition) -> OffsetRange:
        """A partition's offsets. `ApiError`, `NoBroker`.

        Streams that ask one leader meanwhile share a request, but not with those of another leader,
        which may hang. One that does not answer for a partition is asked for it alone, for longer.
        """
        leader = self.cluster.leaders.get(partition, NO_LEADER)
        if leader != NO_LEADER:
            found = await self._joined_offsets[leader]({partition: None})
            if partition in found:
                return found[partition]
        return (await find_ranges(self.cluster, [partition]))[partition]

    async def _ask_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetRange]:
        return (await ask_ranges_once(self.cluster, partitions)).known

    def forget_leader(self, partition: TopicPartition) -> None:
        """Forget a partition's leader, so that `connection` looks it up again."""
        self.cluster.leaders.pop(partition, None)

    def close(self) -> None:
        self.cluster.close()
        for each in self._connections.values():
            each.close()
