"""DeleteRecords (key 21): advances a partition's log start offset (KIP-107).

The new start offset is on the leader's disk, and all live replicas have taken it, before the
answer; no read goes below it from then on. Segments that lie wholly below it are deleted, and no
others: the one that contains it stays until retention, and so does what is older than that allows.
"""

from __future__ import annotations

import asyncio

from kdist.errors import ApiError, Error
from kdist.model import INTERNAL_TOPICS, NO_OFFSET, TopicPartition
from kdist.protocol.delete_records import (
    HIGH_WATERMARK,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    TrimmedPartition,
    TrimmedPartitionResult,
    TrimmedTopicResult,
)
from kdist.replication.partition import Partition
from kdist.replication.replicas import Replicas
from kdist.storage.directory import LogDirectory


async def answer(request: DeleteRecordsRequest, replicas: Replicas) -> DeleteRecordsResponse:
    """Answer with each partition's new log start offset. Raises `DiskFailed`.

    OFFSET_OUT_OF_RANGE beyond the high watermark, POLICY_VIOLATION for a topic whose
    `cleanup.policy` has no `delete`, INVALID_TOPIC_EXCEPTION for internal topics.
    """
    under_way = [
        asyncio.ensure_future(_trim(topic.name, each, replicas, max(0, request.timeout_ms)))
        for topic in request.topics
        for each in topic.partitions
    ]
    results = iter(await asyncio.gather(*under_way))
    return DeleteRecordsResponse(
        topics=[
            TrimmedTopicResult(
                name=topic.name, partitions=[next(results) for _ in topic.partitions]
            )
            for topic in request.topics
        ]
    )


async def _trim(
    topic: str, asked: TrimmedPartition, replicas: Replicas, timeout_ms: int
) -> TrimmedPartitionResult:
    result = TrimmedPartitionResult(
        partition_index=asked.partition_index, low_watermark=NO_OFFSET, error_code=Error.NONE
    )
    try:
        if topic in INTERNAL_TOPICS:
            raise ApiError(Error.INVALID_TOPIC_EXCEPTION)
        partition = replicas.get(TopicPartition(topic, asked.partition_index))
        await _move_start(partition, asked.offset, replicas.directory)
        await _deleted_everywhere(partition, partition.log.start_offset, timeout_ms)
        result.low_watermark = partition.low_watermark
    except ApiError as error:
        result.error_code = error.error
    return result


async def _move_start(partition: Partition, offset: int, directory: LogDirectory) -> None:
    start_offset, log = _checked(partition, offset), partition.log
    moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if moved.done():
            return  # cancelled: the broker is stopping
        if error is None:
            moved.set_result(None)
        else:
            moved.set_exception(ApiError(Error.KAFKA_STORAGE_ERROR, str(error)))

    directory.trimmer.delete_records(log, start_offset, done)
    await moved


async def _deleted_everywhere(partition: Partition, offset: int, timeout_ms: int) -> None:
    """Wait for the other replicas. REQUEST_TIMED_OUT, NOT_LEADER_OR_FOLLOWER."""
    ended: asyncio.Future[Error] = asyncio.get_running_loop().create_future()

    def done(error: Error) -> None:
        if not ended.done():  # cancelled: the broker is stopping
            ended.set_result(error)

    partition.await_deleted(offset, timeout_ms, done)
    if error := await ended:
        raise ApiError(error)


def _checked(partition: Partition, offset: int) -> int:
    """The new log start offset; ApiError if it is not allowed."""
    partition.require_leader()
    if "delete" not in partition.log.settings.cleanup_policy:
        raise ApiError(Error.POLICY_VIOLATION)
    if offset == HIGH_WATERMARK:
        return partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        raise ApiError(Error.OFFSET_OUT_OF_RANGE)
    return offset
