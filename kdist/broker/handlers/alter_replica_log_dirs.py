"""AlterReplicaLogDirs (key 34): a broker has one log directory, so a replica is there already.

the directory            the replica is           answer
is not this broker's     anywhere                 LOG_DIR_NOT_FOUND
is this broker's         on this broker           NONE
is this broker's         on none, or another      REPLICA_NOT_AVAILABLE: it will be there
"""

from __future__ import annotations

from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from kdist.storage.directory import LogDirectory


def answer(
    request: AlterReplicaLogDirsRequest, directory: LogDirectory
) -> AlterReplicaLogDirsResponse:
    """An answer for each replica of the request."""
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for asked in request.dirs:
        for topic in asked.topics:
            results.setdefault(topic.name, []).extend(
                AlterReplicaLogDirPartitionResult(
                    partition_index=index,
                    error_code=_outcome(directory, asked.path, TopicPartition(topic.name, index)),
                )
                for index in topic.partitions
            )
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            for name, partitions in results.items()
        ]
    )


def _outcome(directory: LogDirectory, path: str, partition: TopicPartition) -> Error:
    if path != directory.path:
        return Error.LOG_DIR_NOT_FOUND
    return Error.NONE if partition in directory.logs else Error.REPLICA_NOT_AVAILABLE
