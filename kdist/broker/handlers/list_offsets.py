"""ListOffsets (key 2): the offset at a timestamp, at the start or at the end of a partition.

Version 0 is the first design's getOffsetsBefore: the base offsets of segments that were last
modified before a time, newest first. A client that debugs is told of any replica, up to its log end
offset; all others must ask the leader. Source: KIP-79, KIP-207, KIP-734, Kafka's `KafkaApis`,
`ReplicaManager` and `Partition`.
"""

from __future__ import annotations

from collections import Counter

from kdist.errors import ApiError, Error
from kdist.model import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, TopicPartition
from kdist.protocol.list_offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResult,
)
from kdist.protocol.offset_for_leader_epoch import DEBUG_CONSUMER
from kdist.protocol.schema import NEVER
from kdist.replication.partition import Partition
from kdist.replication.replicas import Replicas
from kdist.storage.log import Log
from kdist.storage.reading import TimestampedOffset, find_by_timestamp, find_newest

_FIRST_VERSION_OF_NOT_AVAILABLE = 5
_FIRST_VERSION_OF_LEADER_EPOCHS = 4
_FIRST_VERSION_OF = {  # of timestamps with a meaning of their own
    LATEST_TIMESTAMP: 1,
    EARLIEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
}
_NOT_FOUND = TimestampedOffset(NO_OFFSET, NO_TIMESTAMP, NO_EPOCH)


def answer(request: ListOffsetsRequest, version: int, replicas: Replicas) -> ListOffsetsResponse:
    """One result for each partition. Raises `DiskFailed`."""
    twice = _named_twice(request) if version > 0 else set()
    topics = [
        ListOffsetsTopicResult(
            name=topic.name,
            partitions=[
                _answer(request, version, topic.name, asked, twice, replicas)
                for asked in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return ListOffsetsResponse(topics=topics)


def _answer(
    request: ListOffsetsRequest,
    version: int,
    topic: str,
    asked: ListOffsetsPartition,
    twice: set[TopicPartition],
    replicas: Replicas,
) -> ListOffsetsPartitionResult:
    key = TopicPartition(topic, asked.partition_index)
    result = ListOffsetsPartitionResult(partition_index=key.partition, error_code=0)
    try:
        if key in twice:
            raise ApiError(Error.INVALID_REQUEST, f"the request names {key} twice")
        partition = replicas.get(key)
        if request.replica_id == DEBUG_CONSUMER:
            end_offset = partition.log.end_offset
        else:
            partition.require_leader(asked.current_leader_epoch)
            level = request.isolation_level if version > 0 else 0
            end_offset = partition.visible_end(request.replica_id, level)
        if version == 0:
            result.old_style_offsets = list_segment_offsets(
                partition.log,
                asked.timestamp,
                asked.max_num_offsets,
                end_offset,
                replicas.directory.context.clock.now_ms(),
            )
        else:
            found = _find(partition, asked.timestamp, end_offset, version)
            is_consumer = request.replica_id < 0
            if is_consumer and _may_go_back(partition, asked.timestamp, found, end_offset):
                raise ApiError(Error.OFFSET_NOT_AVAILABLE)
            result.offset, result.timestamp = found.offset, found.timestamp
            if version >= _FIRST_VERSION_OF_LEADER_EPOCHS:
                result.leader_epoch = found.leader_epoch
    except ApiError as error:
        result.error_code = error.error
        if error.error is Error.OFFSET_NOT_AVAILABLE and version < _FIRST_VERSION_OF_NOT_AVAILABLE:
            result.error_code = Error.LEADER_NOT_AVAILABLE
    return result


def _named_twice(request: ListOffsetsRequest) -> set[TopicPartition]:
    counts = Counter(
        TopicPartition(topic.name, asked.partition_index)
        for topic in request.topics
        for asked in topic.partitions
    )
    return {key for key, count in counts.items() if count > 1}


def _find(partition: Partition, timestamp: int, end_offset: int, version: int) -> TimestampedOffset:
    """The answer for version 1 and later. UNSUPPORTED_VERSION for an unknown special timestamp.

    All of a log is on the leader's own disks, and nothing is in tiered storage.
    """
    log = partition.log
    if timestamp < 0 and version < _FIRST_VERSION_OF.get(timestamp, NEVER):
        raise ApiError(
            Error.UNSUPPORTED_VERSION, f"ListOffsets {version} has no timestamp {timestamp}"
        )
    if timestamp == LATEST_TIMESTAMP:
        return TimestampedOffset(end_offset, NO_TIMESTAMP, log.epochs.latest)
    if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        epoch = log.epochs.epoch_of(log.start_offset)
        return TimestampedOffset(log.start_offset, NO_TIMESTAMP, epoch)
    if timestamp == LATEST_TIERED_TIMESTAMP:
        return _NOT_FOUND
    found = find_newest(log) if timestamp == MAX_TIMESTAMP else find_by_timestamp(log, timestamp)
    return _NOT_FOUND if found is None or found.offset >= end_offset else found


def _may_go_back(
    partition: Partition, timestamp: int, found: TimestampedOffset, end_offset: int
) -> bool:
    """Whether the answer may be lower than one that an earlier leader gave (KIP-207).

    A new leader's high watermark is behind the true one until its followers have fetched. What is
    below it all the same is the answer of any leader.
    """
    if not partition.is_behind_its_epoch:
        return False
    if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP, LATEST_TIERED_TIMESTAMP):
        return False
    return not 0 <= found.offset < end_offset


def list_segment_offsets(
    log: Log, timestamp: int, count_max: int, end_offset: int, now_ms: int
) -> list[int]:
    """Base offsets of segments last modified by `timestamp`, and the log end offset; newest first.

    At most `count_max`. Those above `end_offset` are replaced by a single `end_offset`.
    """
    times = [(max(s.base_offset, log.start_offset), s.modified_ms) for s in log.segments]
    if log.active.size:
        times.append((log.end_offset, now_ms))
    if timestamp == EARLIEST_TIMESTAMP:
        times = times[:1]
    elif timestamp != LATEST_TIMESTAMP:
        latest = max((n for n, (_, ms) in enumerate(times) if ms <= timestamp), default=-1)
        times = times[: latest + 1]
    newest_first = [offset for offset, _ in reversed(times)][: max(0, count_max)]
    visible = [offset for offset in newest_first if offset <= end_offset]
    return newest_first if len(visible) == len(newest_first) else [end_offset, *visible]
