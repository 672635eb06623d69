"""OffsetCommit (key 8): commit a group's offsets.

    version  changed
    0        group and offsets only; kept in ZooKeeper
    1        generation and member; a timestamp with each offset; kept in __consumer_offsets
    2        retention time instead of the timestamps
    3        response: throttle time (KIP-124)
    4        throttling happens after the response is sent (KIP-219)
    5        retention time is gone: the broker's setting alone decides (KIP-211)
    6        leader epoch of the committed offset (KIP-320)
    7        group instance id of static members (KIP-345)
    8        flexible (KIP-482)

Generation -1 with an empty member id is a commit from outside the group's membership.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int16, int32, int64, message, nullable_string, string, struct


@struct
class OffsetCommitPartition:
    """`committed_offset` is that of the next record to read."""

    partition_index: int32
    committed_offset: int64
    committed_leader_epoch: int32 = at(since=6, default=-1, ignorable=True)
    commit_timestamp: int64 = at(since=1, until=1, default=-1)
    committed_metadata: nullable_string


@struct
class OffsetCommitTopic:
    name: string
    partitions: list[OffsetCommitPartition]


@message(flexible=8)
class OffsetCommitRequest:
    """`retention_time_ms` -1 stands for the broker's setting."""

    group_id: string
    generation_id: int32 = at(since=1, default=-1, ignorable=True)
    member_id: string = at(since=1, default="", ignorable=True)
    group_instance_id: nullable_string = at(since=7, default=None)
    retention_time_ms: int64 = at(since=2, until=4, default=-1, ignorable=True)
    topics: list[OffsetCommitTopic]


@struct
class OffsetCommitPartitionResult:
    partition_index: int32
    error_code: int16


@struct
class OffsetCommitTopicResult:
    name: string
    partitions: list[OffsetCommitPartitionResult]


@message(flexible=8)
class OffsetCommitResponse:
    """One result for each partition of the request, which has no error code of its own."""

    throttle_time_ms: int32 = at(since=3, default=0, ignorable=True)
    topics: list[OffsetCommitTopicResult]


API = Api(8, OffsetCommitRequest, OffsetCommitResponse, newest=8)
