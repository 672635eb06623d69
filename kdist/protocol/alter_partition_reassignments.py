"""AlterPartitionReassignments (key 45): move partitions to other replicas, or cancel it (KIP-455).

version  changed
0        flexible from the first

The answer comes once the moves have begun: ListPartitionReassignments tells when they have ended.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int16, int32, message, nullable_string, string, struct


@struct
class ReassignablePartition:
    """`replicas` None cancels the move that is under way."""

    partition_index: int32
    replicas: list[int32] | None = at(default=None)


@struct
class ReassignableTopic:
    name: string
    partitions: list[ReassignablePartition]


@message(flexible=0)
class AlterPartitionReassignmentsRequest:
    timeout_ms: int32 = 60_000
    topics: list[ReassignableTopic]


@struct
class ReassignablePartitionResponse:
    partition_index: int32
    error_code: int16
    error_message: nullable_string = None


@struct
class ReassignableTopicResponse:
    name: string
    partitions: list[ReassignablePartitionResponse]


@message(flexible=0)
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: int32 = 0
    error_code: int16
    error_message: nullable_string = None
    responses: list[ReassignableTopicResponse]


API = Api(45, AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, newest=0)
