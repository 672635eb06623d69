"""Asks partition leaders where leader epochs end: before an offset that was read, if it was lost.

Source: KIP-101, KIP-320.
"""

from __future__ import annotations

from collections.abc import Mapping

from kdist.client.cluster import Cluster, Outcome, Outcomes, by_topic
from kdist.model import TopicPartition
from kdist.protocol.offset_for_leader_epoch import (
    CONSUMER,
    UNDEFINED,
    AskedEpoch,
    AskedEpochTopic,
    OffsetForLeaderEpochRequest,
)


async def find_epoch_ends(
    cluster: Cluster, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The end offset of each partition's leader epoch, or of the newest one before it.

    Partitions whose leader does not know are left out.
    """

    async def ask(leader: int, wanted: list[TopicPartition]) -> Outcomes:
        topics = [
            AskedEpochTopic(
                topic=name,
                partitions=[
                    AskedEpoch(partition=each, leader_epoch=epochs[TopicPartition(name, each)])
                    for each in numbers
                ],
            )
            for name, numbers in by_topic(wanted).items()
        ]
        request = OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=topics)
        answer = await cluster.ask(request, leader)
        return {
            TopicPartition(topic.topic, each.partition): Outcome(each.error_code, each.end_offset)
            for topic in answer.topics
            for each in topic.partitions
        }

    found = await cluster.ask_leaders(epochs, ask)
    return {key: end for key, end in found.items() if end != UNDEFINED}
