"""What groups have committed: read, changed, moved to another place, forgotten.

A group that has members commits for itself, so that changes from outside are refused meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kdist.client.admin.asking import ask_coordinator, group_coordinator
from kdist.client.admin.outcomes import fault_of, settled
from kdist.client.admin.resets import OffsetMove, Target, ToTime, plan_moves
from kdist.client.admin.topics import require_partitions
from kdist.client.cluster import Cluster, by_topic, raise_for
from kdist.client.committed import commit_request, fetch_request, read_committed
from kdist.client.offsets import OffsetAndMetadata, check_time, find_offsets, find_ranges
from kdist.errors import ApiError, Error, UserError
from kdist.model import TopicPartition
from kdist.protocol import offset_fetch
from kdist.protocol.list_offsets import LATEST_TIMESTAMP
from kdist.protocol.offset_delete import (
    ForgottenPartition,
    ForgottenTopic,
    OffsetDeleteRequest,
)

HAS_MEMBERS = frozenset(
    (Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION, Error.REBALANCE_IN_PROGRESS)
)
"""What a commit from outside is answered while a group has members."""

Offsets = dict[TopicPartition, int]


async def group_offsets(cluster: Cluster, group: str) -> Offsets:
    """The next offset to read of each partition; nothing for a group that nobody knows."""
    committed = await group_commits(cluster, group)
    return {partition: each.offset for partition, each in committed.items()}


async def group_commits(cluster: Cluster, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """As `group_offsets`, with what is noted beside each offset."""

    async def ask() -> dict[TopicPartition, OffsetAndMetadata]:
        client = await cluster.client(await group_coordinator(cluster, group))
        request = fetch_request(group, client.version_of(offset_fetch.API))
        found = read_committed(await client.send(request), group, raise_for)
        return dict(sorted(found.items()))

    return await cluster.retried(ask)


async def alter_group_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int], metadata: str = ""
) -> None:
    """Have a group without members go on from these offsets; `metadata` is kept beside each.

    UNKNOWN_TOPIC_OR_PARTITION for one that is not there; then none is changed.
    """
    for each, offset in offsets.items():
        if offset < 0:  # -1 would be stored, and read as if nothing were committed
            raise UserError(f"{offset} is no offset for {each}: they begin at 0")
    if not offsets:
        return
    # First: the coordinator's own refusal is tried again, as it may not have heard of them yet.
    await require_partitions(cluster, offsets)
    given = {key: OffsetAndMetadata(offset, metadata) for key, offset in offsets.items()}
    request = commit_request(group, given)

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
    """Forget what a group has committed for these; it may read other topics meanwhile."""
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            ForgottenTopic(
                name=name,
                partitions=[ForgottenPartition(partition_index=number) for number in numbers],
            )
            for name, numbers in by_topic(partitions).items()
        ],
    )

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


async def plan_group_reset(
    cluster: Cluster,
    group: str,
    target: Target,
    partitions: Collection[TopicPartition] | None = None,
) -> list[OffsetMove]:
    """Where a group's offsets would go; by default all it has committed. Changes nothing.

    `partitions` may be such that the group has never read: it begins there then.
    """
    if isinstance(target, ToTime):
        check_time(target.timestamp_ms)
    committed = await group_offsets(cluster, group)
    wanted = sorted(committed if partitions is None else partitions)
    await require_partitions(cluster, wanted)
    ranges = await find_ranges(cluster, wanted)
    found: Offsets = {}
    if isinstance(target, ToTime):
        found = await find_offsets(cluster, wanted, target.timestamp_ms)
    return plan_moves(target, {each: committed.get(each) for each in wanted}, ranges, found)


async def reset_group(
    cluster: Cluster,
    group: str,
    target: Target,
    partitions: Collection[TopicPartition] | None = None,
) -> list[OffsetMove]:
    """Move a group's offsets as `plan_group_reset` says; what was done."""
    moves = await plan_group_reset(cluster, group, target, partitions)
    await alter_group_offsets(cluster, group, {each.partition: each.offset for each in moves})
    return moves


async def list_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], timestamp_ms: int = LATEST_TIMESTAMP
) -> Offsets:
    """The first offset at or after a time (ms); by default the end. -1 where there is none.

    `EARLIEST_TIMESTAMP` and `LATEST_TIMESTAMP` ask for where a partition begins and ends.
    """
    wanted = list(partitions)
    await require_partitions(cluster, wanted)
    return await find_offsets(cluster, wanted, timestamp_ms)
