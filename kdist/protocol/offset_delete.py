"""OffsetDelete (key 47): delete single committed offsets of a group (KIP-496).

version  changed
0        the only one; it is not flexible

Sent to the group's coordinator. Offsets of a topic that a member subscribes to are not deleted:
GROUP_SUBSCRIBED_TO_TOPIC.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import int16, int32, message, string, struct


@struct
class ForgottenPartition:
    partition_index: int32


@struct
class ForgottenTopic:
    name: string
    partitions: list[ForgottenPartition]


@message()
class OffsetDeleteRequest:
    group_id: string
    topics: list[ForgottenTopic]


@struct
class ForgottenPartitionResult:
    partition_index: int32
    error_code: int16


@struct
class ForgottenTopicResult:
    name: string
    partitions: list[ForgottenPartitionResult]


@message()
class OffsetDeleteResponse:
    """One result for each partition, or an error for the whole request and no results."""

    error_code: int16 = 0
    throttle_time_ms: int32 = 0
    topics: list[ForgottenTopicResult]


API = Api(47, OffsetDeleteRequest, OffsetDeleteResponse, newest=0)
