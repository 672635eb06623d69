"""OffsetCommit: store a group's positions.

    sender                             accepted while the group is
    a member, in its generation        STABLE or PREPARING; in COMPLETING it has to rejoin
    no member: generation -1           EMPTY, or not known yet

An error for one partition does not affect the others. Source: Apache Kafka's
GroupCoordinator.handleCommitOffsets and its request handler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kdist.errors import Error
from kdist.groups.answers import COMMIT_ERRORS
from kdist.groups.context import GroupsContext
from kdist.groups.group import Group
from kdist.groups.member import UNKNOWN_MEMBER_ID
from kdist.groups.membership import generation_fault
from kdist.groups.offsets import Commits, CommittedOffset
from kdist.groups.rebalance import Rebalancer
from kdist.groups.records import commit_records
from kdist.groups.states import COMPLETING, DEAD, EMPTY
from kdist.model import NO_TIMESTAMP, TopicPartition
from kdist.protocol.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitPartitionResult,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopicResult,
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
    fault = commit_fault(group, request)
    if fault is not Error.NONE:
        done(dict.fromkeys(commits, fault))
        return
    if request.member_id in group.members:
        rebalancer.restart_session(group, group.members[request.member_id])
    length_max = context.settings.offset_metadata_max_bytes
    kept = {
        where: what for where, what in commits.items() if java_length(what.metadata) <= length_max
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


def commit_fault(group: Group, request: OffsetCommitRequest) -> Error:
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
        where: _committed(each, now_ms, expires_ms)
        for topic in request.topics
        for each in topic.partitions
        if is_known(where := TopicPartition(topic.name, each.partition_index))
    }


def java_length(text: str) -> int:
    """Length in UTF-16 code units, as Kafka measures metadata (though its setting says bytes)."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _committed(each: OffsetCommitPartition, now_ms: int, expires_ms: int) -> CommittedOffset:
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
