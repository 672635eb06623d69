"""OffsetFetch: read back a group's committed offsets (pure).

They can be read while the group rebalances too. A group that does not exist has committed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kdist.errors import Error
from kdist.groups.group import Group
from kdist.groups.offsets import NOTHING_COMMITTED, GroupOffsets
from kdist.model import TopicPartition
from kdist.protocol.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchGroupResult,
    OffsetFetchPartitionResult,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
    OffsetFetchTopicResult,
)

GROUPS_SINCE = 8
GROUP_ERROR_SINCE = 2

Find = Callable[[str], tuple[Error, Group | None]]


def fetch(request: OffsetFetchRequest, version: int, find: Find) -> OffsetFetchResponse:
    """The response; `find` looks up a group, or gives the error if it is not coordinated here."""
    is_stable_only = request.require_stable
    if version >= GROUPS_SINCE:
        found = [_fetch_group(each, is_stable_only, find) for each in request.groups]
        return OffsetFetchResponse(groups=found)
    asked = OffsetFetchGroup(group_id=request.group_id, topics=request.topics)
    result = _fetch_group(asked, is_stable_only, find)
    if result.error_code and version < GROUP_ERROR_SINCE:
        result.topics = _all_with(Error.of(result.error_code), request.topics or [])
    return OffsetFetchResponse(topics=result.topics, error_code=result.error_code)


def _fetch_group(
    asked: OffsetFetchGroup, is_stable_only: bool, find: Find
) -> OffsetFetchGroupResult:
    error, group = find(asked.group_id)
    result = OffsetFetchGroupResult(group_id=asked.group_id, topics=[], error_code=error)
    if error is Error.NONE:
        offsets = GroupOffsets() if group is None else group.offsets
        topics = _topics_of(offsets) if asked.topics is None else asked.topics
        result.topics = [_fetch_topic(each, offsets, is_stable_only) for each in topics]
    return result


def _fetch_topic(
    asked: OffsetFetchTopic, offsets: GroupOffsets, is_stable_only: bool
) -> OffsetFetchTopicResult:
    partitions = [
        _with_error(Error.UNSTABLE_OFFSET_COMMIT, partition)
        if is_stable_only and offsets.is_under_way(TopicPartition(asked.name, partition))
        else _committed(asked.name, partition, offsets)
        for partition in asked.partition_indexes
    ]
    return OffsetFetchTopicResult(name=asked.name, partitions=partitions)


def _committed(topic: str, partition: int, offsets: GroupOffsets) -> OffsetFetchPartitionResult:
    committed = offsets.get(TopicPartition(topic, partition))
    return OffsetFetchPartitionResult(
        partition_index=partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=Error.NONE,
    )


def _with_error(error: Error, partition: int) -> OffsetFetchPartitionResult:
    return OffsetFetchPartitionResult(
        partition_index=partition,
        committed_offset=NOTHING_COMMITTED.offset,
        metadata=NOTHING_COMMITTED.metadata,
        error_code=error,
    )


def _all_with(error: Error, topics: Iterable[OffsetFetchTopic]) -> list[OffsetFetchTopicResult]:
    """A group's error repeated for every partition, for versions without a top-level error."""
    return [
        OffsetFetchTopicResult(
            name=topic.name,
            partitions=[_with_error(error, each) for each in topic.partition_indexes],
        )
        for topic in topics
    ]


def _topics_of(offsets: GroupOffsets) -> list[OffsetFetchTopic]:
    """All committed partitions, in the form of a request for them."""
    partitions: dict[str, list[int]] = {}
    for where in offsets:
        partitions.setdefault(where.topic, []).append(where.partition)
    return [
        OffsetFetchTopic(name=topic, partition_indexes=indexes)
        for topic, indexes in partitions.items()
    ]
