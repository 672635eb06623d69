"""CreatePartitions (key 37): add partitions to topics (KIP-195).

version  changed
1        throttling happens after the response is sent (KIP-219)
2        flexible (KIP-482)
3        response: THROTTLING_QUOTA_EXCEEDED may come (KIP-599)
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import int16, int32, message, nullable_string, string, struct


@struct
class NewPartitionAssignment:
    """The brokers that hold one new partition, preferred leader first."""

    broker_ids: list[int32]


@struct
class GrownTopic:
    """`count` is the new total; `assignments` None lets the controller place the new ones."""

    name: string
    count: int32
    assignments: list[NewPartitionAssignment] | None


@message(flexible=2)
class CreatePartitionsRequest:
    """`timeout_ms` bounds the wait until the partitions are on all brokers."""

    topics: list[GrownTopic]
    timeout_ms: int32
    validate_only: bool


@struct
class GrownTopicResult:
    name: string
    error_code: int16
    error_message: nullable_string = None


@message(flexible=2)
class CreatePartitionsResponse:
    throttle_time_ms: int32 = 0
    results: list[GrownTopicResult]


API = Api(37, CreatePartitionsRequest, CreatePartitionsResponse, newest=3)
