"""What a follower asks a leader besides records: where its log begins and ends, and its epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kdist.errors import ApiError, Error
from kdist.network.client import Client
from kdist.protocol import list_offsets, offset_for_leader_epoch
from kdist.protocol.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kdist.protocol.offset_for_leader_epoch import (
    AskedEpoch,
    AskedEpochTopic,
    OffsetForLeaderEpochRequest,
)
from kdist.replication.fetching.followed import FollowedPartition
from kdist.storage.epochs import EpochEnd


async def find_bounds(client: Client, broker_id: int, each: FollowedPartition) -> tuple[int, int]:
    """The leader's log start and log end offset. ApiError if it does not tell."""
    end = await _offset_at(client, broker_id, each, LATEST_TIMESTAMP)
    return await _offset_at(client, broker_id, each, EARLIEST_TIMESTAMP), end


async def _offset_at(
    client: Client, broker_id: int, each: FollowedPartition, timestamp: int
) -> int:
    key = each.partition.key
    one = ListOffsetsPartition(
        partition_index=key.partition,
        current_leader_epoch=each.role.epoch,
        timestamp=timestamp,
    )
    topics = [ListOffsetsTopic(name=key.topic, partitions=[one])]
    request = ListOffsetsRequest(replica_id=broker_id, topics=topics)
    version = client.version_of(list_offsets.API)
    answer = await client.send(request, version)
    result = _only_result(answer.topics)
    if version:
        return int(result.offset)
    if not result.old_style_offsets:
        raise ApiError(Error.UNKNOWN_SERVER_ERROR, "the leader answered without an offset")
    return int(result.old_style_offsets[0])


async def end_of_epoch(client: Client, broker_id: int, each: FollowedPartition) -> EpochEnd:
    """Where the newest epoch of the follower's log ends in the leader's. ApiError as above."""
    key = each.partition.key
    one = AskedEpoch(
        partition=key.partition,
        current_leader_epoch=each.role.epoch,
        leader_epoch=each.partition.log.epochs.latest,
    )
    topics = [AskedEpochTopic(topic=key.topic, partitions=[one])]
    request = OffsetForLeaderEpochRequest(replica_id=broker_id, topics=topics)
    answer = await client.send(request, client.version_of(offset_for_leader_epoch.API))
    result = _only_result(answer.topics)
    return EpochEnd(result.leader_epoch, result.end_offset)


def _only_result(topics: Sequence[Any]) -> Any:
    """That of the one partition which was asked about; ApiError if it is an error, or not there."""
    results = [each for topic in topics for each in topic.partitions]
    if len(results) != 1:
        detail = f"the leader answered about {len(results)} partitions, where one was asked about"
        raise ApiError(Error.UNKNOWN_SERVER_ERROR, detail)
    if results[0].error_code:
        raise ApiError(Error.of(results[0].error_code))
    return results[0]
