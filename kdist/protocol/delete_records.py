"""DeleteRecords (key 21): delete the records before an offset (KIP-107).

version  changed
1        throttling happens after the response is sent (KIP-219)
2        flexible (KIP-482)

Sent to the partition's leader.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import int16, int32, int64, message, string, struct

HIGH_WATERMARK = -1  # as an offset: everything that consumers can see


@struct
class TrimmedPartition:
    """`offset` is that of the first record that stays."""

    partition_index: int32
    offset: int64


@struct
class TrimmedTopic:
    name: string
    partitions: list[TrimmedPartition]


@message(flexible=2)
class DeleteRecordsRequest:
    """`timeout_ms` bounds the wait until every replica has deleted them."""

    topics: list[TrimmedTopic]
    timeout_ms: int32


@struct
class TrimmedPartitionResult:
    """`low_watermark`: the lowest log start offset of the replicas alive, or -1."""

    partition_index: int32
    low_watermark: int64
    error_code: int16


@struct
class TrimmedTopicResult:
    name: string
    partitions: list[TrimmedPartitionResult]


@message(flexible=2)
class DeleteRecordsResponse:
    throttle_time_ms: int32 = 0
    topics: list[TrimmedTopicResult]


API = Api(21, DeleteRecordsRequest, DeleteRecordsResponse, newest=2)
