"""DescribeLogDirs (key 35): this broker's log directory, and the size of each replica in it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from kdist.errors import Error
from kdist.model import TopicPartition
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


def answer(request: DescribeLogDirsRequest, directory: LogDirectory) -> DescribeLogDirsResponse:
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
