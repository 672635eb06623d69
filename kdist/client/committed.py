"""Builds requests that commit and fetch groups' offsets, and reads their answers (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kdist.client.cluster import in_topics
from kdist.client.offsets import OffsetAndMetadata
from kdist.model import NO_OFFSET, TopicPartition
from kdist.protocol.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from kdist.protocol.offset_fetch import OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic

_VERSION_OF_STABLE = 7
_VERSION_OF_MANY = 8  # from then on several groups at once (KIP-709)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


def commit_request(group: str, offsets: Offsets) -> OffsetCommitRequest:
    """A request that commits these offsets from outside the group."""

    def one(key: TopicPartition) -> OffsetCommitPartition:
        return OffsetCommitPartition(
            partition_index=key.partition,
            committed_offset=offsets[key].offset,
            committed_leader_epoch=offsets[key].leader_epoch,
            committed_metadata=offsets[key].metadata,
        )

    topics = in_topics(OffsetCommitTopic, offsets, one)
    return OffsetCommitRequest(group_id=group, topics=topics)


def fetch_request(
    group: str,
    version: int,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    is_stable: bool = False,
) -> OffsetFetchRequest:
    """A request for these partitions' committed offsets, or with None for all of the group's.

    With `is_stable`, partitions with offsets pending in a transaction get an error, if `version`
    allows asking for that.
    """
    topics = None
    if partitions is not None:
        topics = in_topics(
            OffsetFetchTopic, partitions, lambda key: key.partition, rows="partition_indexes"
        )
    is_stable = is_stable and version >= _VERSION_OF_STABLE
    if version >= _VERSION_OF_MANY:
        groups = [OffsetFetchGroup(group_id=group, topics=topics)]
        return OffsetFetchRequest(groups=groups, require_stable=is_stable)
    return OffsetFetchRequest(group_id=group, topics=topics, require_stable=is_stable)


def read_committed(
    answer: Any, group: str, check: Callable[[int, str], None]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The committed offsets, of partitions that have one; `check` raises the error for a code."""
    found = answer.groups[0] if answer.groups else answer
    check(found.error_code, f"group {group}")
    committed = {}
    for topic in found.topics:
        for each in topic.partitions:
            key = TopicPartition(topic.name, each.partition_index)
            check(each.error_code, f"group {group}, {key}")
            if each.committed_offset != NO_OFFSET:
                committed[key] = OffsetAndMetadata(
                    each.committed_offset, each.metadata or "", each.committed_leader_epoch
                )
    return committed
