"""ElectLeaders (key 43): have partitions led by their preferred replica, or by any live one.

    version  changed
    0        the preferred replica
    1        election type; response: top-level error code (KIP-460)
    2        flexible (KIP-482)

No topics (None) means all partitions of the cluster. A partition that is already led as wanted is
answered ELECTION_NOT_NEEDED.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int8, int16, int32, message, nullable_string, string, struct

PREFERRED = 0  # election types
UNCLEAN = 1


@struct
class ElectionTopic:
    topic: string
    partitions: list[int32]


@message(flexible=2)
class ElectLeadersRequest:
    election_type: int8 = at(since=1, default=PREFERRED)
    topic_partitions: list[ElectionTopic] | None
    timeout_ms: int32 = 60_000


@struct
class ElectionPartitionResult:
    partition_id: int32
    error_code: int16
    error_message: nullable_string = None


@struct
class ElectionTopicResult:
    topic: string
    partition_result: list[ElectionPartitionResult]


@message(flexible=2)
class ElectLeadersResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = at(since=1, default=0)
    replica_election_results: list[ElectionTopicResult]


API = Api(43, ElectLeadersRequest, ElectLeadersResponse, newest=2)
