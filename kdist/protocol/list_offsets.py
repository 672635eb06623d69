"""ListOffsets (key 2): the offset at a timestamp, at the start or at the end of a partition.

    version  changed
    0        timestamp and a number: the base offsets of segments older than it, newest first
    1        one offset, that of the first record at or after the timestamp (KIP-79)
    2        isolation level; response: throttle time (KIP-98)
    3        throttling happens after the response is sent (KIP-219)
    4        current leader epoch; response: leader epoch (KIP-320)
    5        response: OFFSET_NOT_AVAILABLE may come (KIP-207)
    6        flexible (KIP-482)
    7        timestamp -3: the record with the largest timestamp (KIP-734)
    8        timestamp -4: the start of what is on the leader's own disks (KIP-405)
    9        timestamp -5: the last record in tiered storage (KIP-1005)

Timestamps are milliseconds; -1 asks for the end (high watermark, or last stable offset under
read_committed), -2 for the log start offset. No such record: offset and timestamp -1, no error.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int8, int16, int32, int64, message, string, struct

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5


@struct
class ListOffsetsPartition:
    partition_index: int32
    current_leader_epoch: int32 = at(since=4, default=-1, ignorable=True)
    timestamp: int64
    max_num_offsets: int32 = at(until=0, default=1)


@struct
class ListOffsetsTopic:
    name: string
    partitions: list[ListOffsetsPartition]


@message(flexible=6)
class ListOffsetsRequest:
    """`replica_id` is -1 for a client; a follower may see beyond the high watermark."""

    replica_id: int32 = -1
    isolation_level: int8 = at(since=2, default=0)
    topics: list[ListOffsetsTopic]


@struct
class ListOffsetsPartitionResult:
    """Version 0 has `old_style_offsets`, all later ones `offset`."""

    partition_index: int32
    error_code: int16
    old_style_offsets: list[int64] = at(until=0, default=[])
    timestamp: int64 = at(since=1, default=-1)
    offset: int64 = at(since=1, default=-1)
    leader_epoch: int32 = at(since=4, default=-1)


@struct
class ListOffsetsTopicResult:
    name: string
    partitions: list[ListOffsetsPartitionResult]


@message(flexible=6)
class ListOffsetsResponse:
    throttle_time_ms: int32 = at(since=2, default=0, ignorable=True)
    topics: list[ListOffsetsTopicResult]


API = Api(2, ListOffsetsRequest, ListOffsetsResponse, newest=9)
