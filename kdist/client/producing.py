"""Writing batches: one to each of some partitions at a time, and none before those are answered.

So the order within a partition is kept. A batch whose answer got lost is sent again, and may then
be there twice: at least once, as there is no producer id here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kdist.client.cluster import Cluster, Outcome, Outcomes, by_leader, by_topic
from kdist.model import TopicPartition
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.wire.varint import Buffer

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
TIMEOUT_MS = 20_000

Batches = Mapping[TopicPartition, Buffer]


async def produce(cluster: Cluster, batches: Batches, acks: int) -> dict[TopicPartition, int]:
    """The offset each partition's batch begins at; nothing with acks=0. `ApiError`."""
    if acks == ACKS_NONE:
        await _tell(cluster, batches)
        return {}

    async def ask(leader: int, partitions: list[TopicPartition]) -> Outcomes:
        answer = await cluster.ask(_request(batches, partitions, acks), leader)
        return {
            TopicPartition(topic.name, each.index): Outcome(
                each.error_code, each.error_message if each.error_code else each.base_offset
            )
            for topic in answer.responses
            for each in topic.partition_responses
        }

    return await cluster.ask_leaders(batches, ask)


async def _tell(cluster: Cluster, batches: Batches) -> None:
    async def tell(leader: int, partitions: list[TopicPartition]) -> None:
        client = await cluster.client(leader)
        await client.tell(_request(batches, partitions, ACKS_NONE))

    wanted = by_leader(cluster.leaders, batches)
    await asyncio.gather(*(tell(*each) for each in wanted.items()))


def _request(batches: Batches, partitions: list[TopicPartition], acks: int) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=TIMEOUT_MS,
        topic_data=[
            ProduceTopic(
                name=name,
                partition_data=[
                    ProducePartition(index=number, records=batches[TopicPartition(name, number)])
                    for number in numbers
                ],
            )
            for name, numbers in by_topic(partitions).items()
        ],
    )
