"""Offsets: where partitions begin and end, where a time is in them, and what groups committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kdist.client.admin import find_coordinator
from kdist.client.cluster import Cluster, Outcome, Outcomes, by_topic, raise_for
from kdist.errors import ApiError, Error
from kdist.model import NO_OFFSET, TopicPartition
from kdist.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kdist.protocol.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from kdist.protocol.offset_fetch import OffsetFetchGroup, OffsetFetchRequest

Offsets = dict[TopicPartition, int]


async def find_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], timestamp: int
) -> Offsets:
    """The first offset at or after `timestamp` (ms, or EARLIEST_TIMESTAMP, LATEST_TIMESTAMP).

    A partition that has no such record has `NO_OFFSET`.
    """

    async def ask(leader: int, wanted: list[TopicPartition]) -> Outcomes:
        topics = [
            ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsPartition(partition_index=number, timestamp=timestamp)
                    for number in numbers
                ],
            )
            for name, numbers in by_topic(wanted).items()
        ]
        answer = await cluster.ask(ListOffsetsRequest(topics=topics), leader)
        return {
            TopicPartition(topic.name, each.partition_index): Outcome(
                each.error_code, None if each.error_code else each.offset
            )
            for topic in answer.topics
            for each in topic.partitions
        }

    return await cluster.ask_leaders(partitions, ask)


async def committed_offsets(cluster: Cluster, group: str) -> Offsets:
    """What a group has committed; nothing for a group that nobody knows."""

    async def ask() -> Offsets:
        coordinator = await find_coordinator(cluster, group)
        wanted = OffsetFetchGroup(group_id=group, topics=None)
        answer = await cluster.ask(OffsetFetchRequest(groups=[wanted]), coordinator)
        (found,) = answer.groups
        raise_for(found.error_code, f"group {group}")
        offsets: Offsets = {}
        for topic in found.topics:
            for each in topic.partitions:
                key = TopicPartition(topic.name, each.partition_index)
                raise_for(each.error_code, f"group {group}, {key}")
                if each.committed_offset != NO_OFFSET:
                    offsets[key] = each.committed_offset
        return offsets

    return await cluster.retried(ask)


async def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Commit from outside the group's membership: refused while the group has members."""
    if not offsets:
        return
    topics = [
        OffsetCommitTopic(
            name=name,
            partitions=[
                OffsetCommitPartition(
                    partition_index=number,
                    committed_offset=offsets[TopicPartition(name, number)],
                    committed_metadata="",
                )
                for number in numbers
            ],
        )
        for name, numbers in by_topic(offsets).items()
    ]

    async def commit() -> None:
        coordinator = await find_coordinator(cluster, group)
        request = OffsetCommitRequest(group_id=group, topics=topics)
        answer = await cluster.ask(request, coordinator)
        for topic in answer.topics:
            for each in topic.partitions:
                if each.error_code in _TAKEN:
                    raise ApiError(
                        Error.of(each.error_code),
                        f"group {group} has members, and its offsets are theirs to commit",
                    )
                raise_for(each.error_code, f"group {group}, {topic.name}-{each.partition_index}")

    await cluster.retried(commit)


_TAKEN = frozenset(
    error.code
    for error in (
        Error.UNKNOWN_MEMBER_ID,
        Error.ILLEGAL_GENERATION,
        Error.REBALANCE_IN_PROGRESS,
    )
)
