"""AlterReplicaLogDirs (key 34): move replicas between the log directories of a broker (KIP-113).

version  changed
1        throttling happens after the response is sent (KIP-219)
2        flexible (KIP-482)
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import int16, int32, message, string, struct


@struct
class AlterReplicaLogDirTopic:
    name: string
    partitions: list[int32]


@struct
class AlterReplicaLogDir:
    """The replicas that are to be in this directory."""

    path: string
    topics: list[AlterReplicaLogDirTopic]


@message(flexible=2)
class AlterReplicaLogDirsRequest:
    dirs: list[AlterReplicaLogDir]


@struct
class AlterReplicaLogDirPartitionResult:
    partition_index: int32
    error_code: int16


@struct
class AlterReplicaLogDirTopicResult:
    topic_name: string
    partitions: list[AlterReplicaLogDirPartitionResult]


@message(flexible=2)
class AlterReplicaLogDirsResponse:
    throttle_time_ms: int32 = 0
    results: list[AlterReplicaLogDirTopicResult]


API = Api(34, AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, newest=2)
