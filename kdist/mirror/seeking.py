"""A position that somebody chose: a commit with a note that wins over the target's log."""

from __future__ import annotations

from collections.abc import Mapping

from kdist.client.admin import find_coordinator
from kdist.client.cluster import Cluster, by_topic, raise_for
from kdist.errors import ApiError, Error
from kdist.mirror.standing import SOUGHT
from kdist.model import TopicPartition
from kdist.protocol.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)

_TAKEN = (Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION, Error.REBALANCE_IN_PROGRESS)


async def commit_sought(source: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Have the group's mirror go on from here. `ApiError`, also while the mirror runs."""
    topics = [
        OffsetCommitTopic(
            name=name,
            partitions=[
                OffsetCommitPartition(
                    partition_index=number,
                    committed_offset=offsets[TopicPartition(name, number)],
                    committed_metadata=SOUGHT,
                )
                for number in numbers
            ],
        )
        for name, numbers in by_topic(offsets).items()
    ]

    async def commit() -> None:
        coordinator = await find_coordinator(source, group)
        answer = await source.ask(OffsetCommitRequest(group_id=group, topics=topics), coordinator)
        for topic in answer.topics:
            for each in topic.partitions:
                if each.error_code in _TAKEN:
                    error = Error.of(each.error_code)
                    raise ApiError(error, f"the mirror of group {group} runs: stop it first")
                raise_for(each.error_code, f"{topic.name}-{each.partition_index}")

    await source.retried(commit)
