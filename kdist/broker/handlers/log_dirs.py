"""DescribeLogDirs, AlterReplicaLogDirs (keys 35, 34): this broker's one log directory.

Nothing can be moved to another, and a replica is there already.

the directory            the replica is           AlterReplicaLogDirs answers
is not this broker's     anywhere                 LOG_DIR_NOT_FOUND
is this broker's         on this broker           NONE
is this broker's         on none, or another      REPLICA_NOT_AVAILABLE: it will be there
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from kdist.protocol.describe_log_dirs import (
    AskedLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDirPartition,
    LogDirResult,
    LogDirTopic,
)
from kdist.storage.directory import LogDirectory
from kdist.storage.log import Log


def describe(request: DescribeLogDirsRequest, directory: LogDirectory) -> DescribeLogDirsResponse:
    """Sizes in bytes, including what is not flushed to the disk yet. Raises `DiskFailed`."""
    files, logs = directory.files, directory.logs
    found = sorted(logs if request.topics is None else _asked(request.topics) & logs.keys())
    result = LogDirResult(
        error_code=Error.NONE,
        log_dir=directory.path,
        topics=[
            LogDirTopic(name=name, partitions=[_described(logs[each]) for each in members])
            for name, members in groupby(found, key=lambda each: each.topic)
        ],
        total_bytes=files.total_bytes(directory.path),
        usable_bytes=files.free_bytes(directory.path),
    )
    return DescribeLogDirsResponse(results=[result])


def _asked(topics: Iterable[AskedLogDirTopic]) -> set[TopicPartition]:
    return {TopicPartition(each.topic, index) for each in topics for index in each.partitions}


def _described(log: Log) -> LogDirPartition:
    return LogDirPartition(
        partition_index=log.partition.partition,
        partition_size=log.size,
        offset_lag=0,  # behind the high watermark, as Kafka counts it: a leader's log never is
    )


def alter(
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
