"""Writes batches, one per partition, and waits until all are acknowledged.

That keeps the order within each partition. There is no producer id here, so delivery is at least
once: a batch whose answer was lost is sent again, and may be written twice.
"""

from __future__ import annotations

from collections.abc import Mapping

from kdist.client.cluster import Cluster, Outcome, Outcomes, in_topics
from kdist.model import TopicPartition
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.wire.primitives import Buffer

ACKS_ALL = -1
TIMEOUT_MS = 20_000

Batches = Mapping[TopicPartition, Buffer]


async def produce(cluster: Cluster, batches: Batches) -> dict[TopicPartition, int]:
    """Write the batches; returns their base offsets once all in-sync replicas have them.

    `ApiError` if that fails.
    """

    async def ask(leader: int, partitions: list[TopicPartition]) -> Outcomes:
        topics = in_topics(
            ProduceTopic,
            partitions,
            lambda key: ProducePartition(index=key.partition, records=batches[key]),
            rows="partition_data",
        )
        request = ProduceRequest(acks=ACKS_ALL, timeout_ms=TIMEOUT_MS, topic_data=topics)
        answer = await cluster.ask(request, leader)
        return {
            TopicPartition(topic.name, each.index): Outcome(
                each.error_code, each.error_message if each.error_code else each.base_offset
            )
            for topic in answer.responses
            for each in topic.partition_responses
        }

    return await cluster.ask_leaders(batches, ask)
