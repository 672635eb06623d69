"""Deletes the oldest records of partitions, ahead of their retention."""

from __future__ import annotations

from collections.abc import Mapping

from kdist.client.admin.asking import TIMEOUT_MS
from kdist.client.admin.topics import require_partitions
from kdist.client.cluster import Cluster, Outcome, Outcomes, in_topics
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.delete_records import (
    HIGH_WATERMARK,
    DeleteRecordsRequest,
    TrimmedPartition,
    TrimmedPartitionResult,
    TrimmedTopic,
)

__all__ = ["HIGH_WATERMARK", "delete_records"]


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Delete the records before these offsets, for good; returns the new log start offsets.

    `HIGH_WATERMARK` as an offset deletes all records.
    """

    async def ask(leader: int, partitions: list[TopicPartition]) -> Outcomes:
        topics = in_topics(
            TrimmedTopic,
            partitions,
            lambda key: TrimmedPartition(partition_index=key.partition, offset=before[key]),
        )
        request = DeleteRecordsRequest(topics=topics, timeout_ms=TIMEOUT_MS)
        answer = await cluster.ask(request, leader)
        return {
            key: Outcome(each.error_code, _told(each, before[key]))
            for topic in answer.topics
            for each in topic.partitions
            for key in (TopicPartition(topic.name, each.partition_index),)
        }

    await require_partitions(cluster, before)
    return dict(sorted((await cluster.ask_leaders(before, ask)).items()))


def _told(found: TrimmedPartitionResult, wanted: int) -> int | str | None:
    """The new log start offset, or a message that says more than the error code does."""
    if found.error_code == Error.OFFSET_OUT_OF_RANGE:
        return f"it has no offset {wanted}"
    if found.error_code == Error.POLICY_VIOLATION:
        return "its topic's cleanup.policy has no `delete`"
    return None if found.error_code else found.low_watermark
