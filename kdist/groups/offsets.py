"""OffsetCommit and OffsetFetch: a group's positions, stored and read back.

    sender                             accepted while the group is
    a member, in its generation        STABLE or PREPARING; in COMPLETING it has to rejoin
    no member: generation -1           EMPTY, or not known yet

An error for one partition does not affect the others. Offsets can be fetched while the group
rebalances too; a group that does not exist has committed nothing. Source: Apache Kafka's
GroupCoordinator.handleCommitOffsets, handleFetchOffsets and their request handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kdist.errors import Error
from kdist.groups.context import COMMIT_ERRORS, GroupsContext
from kdist.groups.group import (
    COMPLETING,
    DEAD,
    EMPTY,
    NOTHING_COMMITTED,
    UNKNOWN_MEMBER_ID,
    Commits,
    CommittedOffset,
    Group,
    GroupOffsets,
)
from kdist.groups.membership import generation_fault
from kdist.groups.rebalance import Rebalancer
from kdist.groups.records import commit_records
from kdist.groups.registry import Find
from kdist.model import NO_TIMESTAMP, TopicPartition
from kdist.protocol.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitPartitionResult,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopicResult,
)
from kdist.protocol.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchGroupResult,
    OffsetFetchPartitionResult,
    OffsetFetchTopic,
    OffsetFetchTopicResult,
)

Results = Mapping[TopicPartition, Error]

_INT64_MAX = 2**63 - 1


def commit(
    context: GroupsContext,
    rebalancer: Rebalancer,
    group: Group,
    request: OffsetCommitRequest,
    commits: Commits,
    done: Callable[[Results], None],
) -> None:
    """Store `commits`, the request's existing partitions, then call `done` with their results."""
    fault = _commit_fault(group, request)
    if fault is not Error.NONE:
        done(dict.fromkeys(commits, fault))
        return
    if request.member_id in group.members:
        rebalancer.restart_session(group, group.members[request.member_id])
    length_max = context.settings.offset_metadata_max_bytes
    kept = {
        where: what for where, what in commits.items() if _java_length(what.metadata) <= length_max
    }
    results = dict.fromkeys(commits, Error.OFFSET_METADATA_TOO_LARGE)
    if not kept:
        done(results)
        return
    number = group.offsets.begin(kept)

    def stored(error: Error) -> None:
        if error is not Error.NONE:
            context.metrics.failed_appends += 1
            group.offsets.fail(number, kept)
        else:
            context.metrics.committed_offsets += len(kept)
            group.offsets.finish(number, kept)
        done(results | dict.fromkeys(kept, COMMIT_ERRORS.get(error, error)))

    context.append(group.group_id, commit_records(group.group_id, kept), stored)


def commit_response(request: OffsetCommitRequest, results: Results) -> OffsetCommitResponse:
    """The results of all partitions of the request; those not in `results` do not exist (pure)."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitTopicResult(
                name=topic.name,
                partitions=[
                    _result(topic.name, each.partition_index, results) for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _commit_fault(group: Group, request: OffsetCommitRequest) -> Error:
    """Why the request may not commit to the group (pure); NONE if it may."""
    assert group.state is not DEAD
    is_outside = request.generation_id < 0
    if is_outside and group.state is EMPTY:
        return Error.NONE
    is_nobody = request.member_id == UNKNOWN_MEMBER_ID and request.group_instance_id is None
    if is_outside and is_nobody:
        return Error.UNKNOWN_MEMBER_ID  # while a group has members, only they commit
    fault = generation_fault(
        group, request.member_id, request.group_instance_id, request.generation_id
    )
    if fault is Error.NONE and group.state is COMPLETING:
        return Error.REBALANCE_IN_PROGRESS
    return fault


def commits_of(
    request: OffsetCommitRequest, is_known: Callable[[TopicPartition], bool], now_ms: int
) -> Commits:
    """What a request commits, for partitions that exist."""
    expires_ms = NO_TIMESTAMP
    if request.retention_time_ms != NO_TIMESTAMP:
        # Capped at what the record can hold: a client may ask for the largest int64.
        expires_ms = min(now_ms + request.retention_time_ms, _INT64_MAX)
    return {
        where: _committed_by(each, now_ms, expires_ms)
        for topic in request.topics
        for each in topic.partitions
        if is_known(where := TopicPartition(topic.name, each.partition_index))
    }


def _java_length(text: str) -> int:
    """Length in UTF-16 code units, as Kafka measures metadata (though its setting says bytes)."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _committed_by(each: OffsetCommitPartition, now_ms: int, expires_ms: int) -> CommittedOffset:
    is_timed = each.commit_timestamp != NO_TIMESTAMP  # version 1
    return CommittedOffset(
        each.committed_offset,
        each.committed_leader_epoch,
        each.committed_metadata or "",
        each.commit_timestamp if is_timed else now_ms,
        expires_ms,
    )


def _result(topic: str, partition: int, results: Results) -> OffsetCommitPartitionResult:
    error = results.get(TopicPartition(topic, partition), Error.UNKNOWN_TOPIC_OR_PARTITION)
    return OffsetCommitPartitionResult(partition_index=partition, error_code=error)


# Fetching


def fetch(asked: OffsetFetchGroup, is_stable_only: bool, find: Find) -> OffsetFetchGroupResult:
    """What the group has; `find` looks it up, or gives the error if it is not coordinated here."""
    error, group = find(asked.group_id)
    result = OffsetFetchGroupResult(group_id=asked.group_id, topics=[], error_code=error)
    if error is Error.NONE:
        offsets = GroupOffsets() if group is None else group.offsets
        topics = _topics_of(offsets) if asked.topics is None else asked.topics
        result.topics = [_fetch_topic(each, offsets, is_stable_only) for each in topics]
    return result


def in_each_partition(
    error: Error, topics: Iterable[OffsetFetchTopic]
) -> list[OffsetFetchTopicResult]:
    """A group's error, for those that look for it beside each partition."""
    return [
        OffsetFetchTopicResult(
            name=topic.name,
            partitions=[_with_error(error, each) for each in topic.partition_indexes],
        )
        for topic in topics
    ]


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


def _topics_of(offsets: GroupOffsets) -> list[OffsetFetchTopic]:
    """All committed partitions, in the form of a request for them."""
    partitions: dict[str, list[int]] = {}
    for where in offsets:
        partitions.setdefault(where.topic, []).append(where.partition)
    return [
        OffsetFetchTopic(name=topic, partition_indexes=indexes)
        for topic, indexes in partitions.items()
    ]
