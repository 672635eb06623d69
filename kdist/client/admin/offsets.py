"""Groups' committed offsets: read, change, reset, delete.

While a group has members, only they may commit, and changes from outside are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from kdist.client.admin.asking import ask_coordinator, group_coordinator
from kdist.client.admin.outcomes import SomeFailed, fault_of, settled
from kdist.client.admin.resets import OffsetMove, Target, ToTime, plan_moves
from kdist.client.admin.topics import require_partitions
from kdist.client.cluster import Cluster, api_error, in_topics, raise_for
from kdist.client.committed import commit_request, fetch_request, read_committed
from kdist.client.offsets import OffsetAndMetadata, find_offsets, find_ranges
from kdist.errors import ApiError, Error, UserError
from kdist.model import TopicPartition
from kdist.protocol import offset_fetch
from kdist.protocol.list_offsets import LATEST_TIMESTAMP
from kdist.protocol.offset_delete import ForgottenPartition, ForgottenTopic, OffsetDeleteRequest

HAS_MEMBERS = frozenset(
    (Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION, Error.REBALANCE_IN_PROGRESS)
)
"""The errors of a commit from outside while a group has members."""

T = TypeVar("T")
Offsets = dict[TopicPartition, int]


async def list_group_offsets(cluster: Cluster, group: str) -> Offsets:
    """A group's committed offsets by partition; empty for a group that does not exist."""
    committed = await group_commits(cluster, group)
    return {partition: each.offset for partition, each in committed.items()}


async def group_commits(cluster: Cluster, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """As `list_group_offsets`, with the metadata and leader epoch committed beside each offset."""

    async def ask() -> dict[TopicPartition, OffsetAndMetadata]:
        client = await cluster.client(await group_coordinator(cluster, group))
        request = fetch_request(group, client.version_of(offset_fetch.API))
        found = read_committed(await client.send(request), group, raise_for)
        return dict(sorted(found.items()))

    return await cluster.retried(ask)


async def alter_group_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int], metadata: str = ""
) -> None:
    """Set the committed offsets of a group without members; `metadata` is stored beside each.

    If a partition does not exist, raises UNKNOWN_TOPIC_OR_PARTITION and changes nothing.
    """
    for each, offset in offsets.items():
        if offset < 0:  # -1 would be stored, and read as if nothing were committed
            raise UserError(f"{offset} is not an offset for {each}: they begin at 0")
    if not offsets:
        return
    # Checked first, as the coordinator's own UNKNOWN_TOPIC_OR_PARTITION would be retried: it may
    # not know of a new topic yet.
    await require_partitions(cluster, offsets)
    places = {key: OffsetAndMetadata(offset, metadata) for key, offset in offsets.items()}
    request = commit_request(group, places)

    async def commit() -> None:
        answer = await cluster.ask(request, await group_coordinator(cluster, group))
        for topic in answer.topics:
            for each in topic.partitions:
                _check_committed(each.error_code, group, f"{topic.name}-{each.partition_index}")

    await cluster.retried(commit)


def _check_committed(code: int, group: str, partition: str) -> None:
    if code in HAS_MEMBERS:
        sentence = f"group {group} has members, and its offsets are theirs to commit"
        raise ApiError(Error.of(code), sentence)
    raise_for(code, f"group {group}, {partition}")


async def delete_group_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition]
) -> None:
    """Delete a group's committed offsets for these partitions.

    GROUP_SUBSCRIBED_TO_TOPIC for a topic that the group's members are subscribed to.
    """
    topics = in_topics(
        ForgottenTopic, partitions, lambda key: ForgottenPartition(partition_index=key.partition)
    )
    request = OffsetDeleteRequest(group_id=group, topics=topics)

    def read(answer: Any) -> dict[TopicPartition, ApiError | None]:
        raise_for(answer.error_code, f"group {group}")
        return {
            TopicPartition(topic.name, each.partition_index): fault_of(
                each.error_code, f"group {group}, {topic.name}-{each.partition_index}"
            )
            for topic in answer.topics
            for each in topic.partitions
        }

    settled(await ask_coordinator(cluster, group, request, read))


async def plan_group_offsets_reset(
    cluster: Cluster,
    group: str,
    target: Target,
    partitions: Collection[TopicPartition] | None = None,
) -> list[OffsetMove]:
    """How a reset would move a group's offsets, by default all of them. Changes nothing.

    `partitions` may include some for which the group has no offset: the reset would set one.
    `SomeFailed` for partitions that have no leader, with the moves of the others.
    """
    if isinstance(target, ToTime):
        from kdist.config.times import check_time  # here, for commands that need no times

        check_time(target.timestamp_ms)
    committed = await list_group_offsets(cluster, group)
    wanted = sorted(committed if partitions is None else partitions)
    await require_partitions(cluster, wanted)
    led = await cluster.led(wanted)
    ranges = await find_ranges(cluster, led)
    found: Offsets = {}
    if isinstance(target, ToTime):
        found = await find_offsets(cluster, led, target.timestamp_ms)
    moves = plan_moves(target, {each: committed.get(each) for each in led}, ranges, found)
    return list(_of_all(wanted, {each.partition: each for each in moves}).values())


def _of_all(
    wanted: Iterable[TopicPartition], led: Mapping[TopicPartition, T]
) -> dict[TopicPartition, T]:
    """The results, which are those of partitions with leaders; `SomeFailed` if others have none."""
    return settled(
        {
            each: led[each] if each in led else api_error(Error.LEADER_NOT_AVAILABLE, str(each))
            for each in wanted
        }
    )


async def reset_group_offsets(
    cluster: Cluster,
    group: str,
    target: Target,
    partitions: Collection[TopicPartition] | None = None,
) -> list[OffsetMove]:
    """Move a group's offsets as `plan_group_offsets_reset` says; returns the moves.

    `SomeFailed` once it has moved the others, if some partitions have no leader.
    """
    try:
        moves = await plan_group_offsets_reset(cluster, group, target, partitions)
    except SomeFailed as some:
        await _move(cluster, group, some.done.values())
        raise
    await _move(cluster, group, moves)
    return moves


async def _move(cluster: Cluster, group: str, moves: Iterable[OffsetMove]) -> None:
    await alter_group_offsets(cluster, group, {each.partition: each.offset for each in moves})


async def list_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], timestamp_ms: int = LATEST_TIMESTAMP
) -> Offsets:
    """The first offset at or after a time (ms), by default the end offset; -1 where there is none.

    `EARLIEST_TIMESTAMP` and `LATEST_TIMESTAMP` ask for a partition's first and end offset.
    `SomeFailed` for partitions that have no leader, with the offsets of the others.
    """
    wanted = list(partitions)
    await require_partitions(cluster, wanted)
    return _of_all(wanted, await find_offsets(cluster, await cluster.led(wanted), timestamp_ms))
