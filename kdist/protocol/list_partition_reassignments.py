"""ListPartitionReassignments (key 46): the partitions that are being moved (KIP-455).

version  changed
0        flexible from the first
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int16, int32, message, nullable_string, string, struct


@struct
class AskedReassignmentTopic:
    name: string
    partition_indexes: list[int32]


@message(flexible=0)
class ListPartitionReassignmentsRequest:
    """`topics` None asks for all."""

    timeout_ms: int32 = 60_000
    topics: list[AskedReassignmentTopic] | None = at(default=None)


@struct
class OngoingPartitionReassignment:
    """`replicas` are all that there are for now."""

    partition_index: int32
    replicas: list[int32]
    adding_replicas: list[int32]
    removing_replicas: list[int32]


@struct
class OngoingTopicReassignment:
    name: string
    partitions: list[OngoingPartitionReassignment]


@message(flexible=0)
class ListPartitionReassignmentsResponse:
    """Partitions that are not being moved are left out."""

    throttle_time_ms: int32 = 0
    error_code: int16
    error_message: nullable_string = None
    topics: list[OngoingTopicReassignment]


API = Api(46, ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse, newest=0)
