"""ListOffsets (key 2) and OffsetForLeaderEpoch (key 23): where in a partition's log something lies.

ListOffsets gives the offset at a timestamp, at the start or at the end. Version 0 is the first
design's getOffsetsBefore: the base offsets of segments that were last modified before a time,
newest first. A client that debugs is told of any replica, up to its log end offset; all others must
ask the leader. Source: KIP-79, KIP-207, KIP-734, Kafka's `KafkaApis`, `ReplicaManager` and
`Partition`.

OffsetForLeaderEpoch gives where a leader epoch ends, from the leader's log. A client whose log or
position lies beyond that end has seen records that are no longer in the log. Source: KIP-101,
KIP-279, KIP-320.
"""

from __future__ import annotations

from collections import Counter

from kdist.broker.handlers import Call
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
from kdist.protocol.offset_for_leader_epoch import (
    DEBUG_CONSUMER,
    AskedEpoch,
    EpochEnd,
    EpochEndTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kdist.protocol.schema import NEVER
from kdist.replication.partition import Partition
from kdist.replication.replicas import Replicas
from kdist.runtime.steps import Steps
from kdist.storage.log import Log
from kdist.storage.time_lookup import (
    TimestampedOffset,
    finding_by_timestamp,
    finding_newest,
)

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

# A step is some 2 ms: what a partition costs in µs, and a look-up in a cached log.
_STEP_COST = 2000
_COST, _LOOKUP_COST = 4, 300


def handle(request: ListOffsetsRequest, call: Call, replicas: Replicas) -> None:
    """Answer now or, if timestamps are to be looked up, perhaps later. Raises `DiskFailed`."""
    answered = answering(request, call.version, replicas)
    try:
        work = next(answered)
    except StopIteration as end:
        call.answer(end.value)
    else:
        replicas.lookups.go_on(answered, work, call.answer, call.crash)


def answering(
    request: ListOffsetsRequest, version: int, replicas: Replicas
) -> Steps[ListOffsetsResponse]:
    """One result for each partition. Raises `DiskFailed`."""
    twice = _named_twice(request) if version > 0 else set()
    topics, cost = [], 0
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            result = yield from _answering(request, version, topic.name, asked, twice, replicas)
            results.append(result)
            cost += _LOOKUP_COST if _is_looked_up(asked.timestamp) else _COST
            if cost >= _STEP_COST:
                cost = 0
                yield None
        topics.append(ListOffsetsTopicResult(name=topic.name, partitions=results))
    return ListOffsetsResponse(topics=topics)


def _answering(
    request: ListOffsetsRequest,
    version: int,
    topic: str,
    asked: ListOffsetsPartition,
    twice: set[TopicPartition],
    replicas: Replicas,
) -> Steps[ListOffsetsPartitionResult]:
    key, timestamp = TopicPartition(topic, asked.partition_index), asked.timestamp
    result = ListOffsetsPartitionResult(partition_index=key.partition, error_code=0)
    try:
        if key in twice:
            raise ApiError(Error.INVALID_REQUEST, f"the request names {key} twice")
        partition = replicas.get(key)
        end_offset = _end_offset(partition, request, version, asked)
        if version == 0:
            result.old_style_offsets = list_segment_offsets(
                partition.log,
                timestamp,
                asked.max_num_offsets,
                end_offset,
                replicas.directory.context.clock.now_ms(),
            )
        else:
            _require_version(timestamp, version)
            if _is_looked_up(timestamp):
                found = yield from _looking_up(partition.log, timestamp)
                end_offset = _end_offset(partition, request, version, asked)  # after the steps
                found = found if found.offset < end_offset else _NOT_FOUND
            else:
                found = _find(partition.log, timestamp, end_offset)
            is_consumer = request.replica_id < 0
            if is_consumer and _may_go_back(partition, timestamp, found, end_offset):
                raise ApiError(Error.OFFSET_NOT_AVAILABLE)
            result.offset, result.timestamp = found.offset, found.timestamp
            if version >= _FIRST_VERSION_OF_LEADER_EPOCHS:
                result.leader_epoch = found.leader_epoch
    except ApiError as error:
        result.error_code = error.error
        if error.error is Error.OFFSET_NOT_AVAILABLE and version < _FIRST_VERSION_OF_NOT_AVAILABLE:
            result.error_code = Error.LEADER_NOT_AVAILABLE
    return result


def _end_offset(
    partition: Partition, request: ListOffsetsRequest, version: int, asked: ListOffsetsPartition
) -> int:
    """Up to where the client may see; `ApiError` if it has to ask another broker."""
    if request.replica_id == DEBUG_CONSUMER:
        return partition.log.end_offset
    partition.require_leader(asked.current_leader_epoch)
    level = request.isolation_level if version > 0 else 0
    return partition.visible_end(request.replica_id, level)


def _named_twice(request: ListOffsetsRequest) -> set[TopicPartition]:
    counts = Counter(
        TopicPartition(topic.name, asked.partition_index)
        for topic in request.topics
        for asked in topic.partitions
    )
    return {key for key, count in counts.items() if count > 1}


def _require_version(timestamp: int, version: int) -> None:
    """UNSUPPORTED_VERSION for a timestamp with a meaning that this version does not have."""
    if timestamp < 0 and version < _FIRST_VERSION_OF.get(timestamp, NEVER):
        raise ApiError(
            Error.UNSUPPORTED_VERSION, f"ListOffsets {version} has no timestamp {timestamp}"
        )


def _is_looked_up(timestamp: int) -> bool:
    """Whether the log is read for it."""
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


def _looking_up(log: Log, timestamp: int) -> Steps[TimestampedOffset]:
    is_newest = timestamp == MAX_TIMESTAMP
    found = yield from finding_newest(log) if is_newest else finding_by_timestamp(log, timestamp)
    return found or _NOT_FOUND


def _find(log: Log, timestamp: int, end_offset: int) -> TimestampedOffset:
    """The answer for the other timestamps.

    All of a log is on the leader's own disks, and nothing is in tiered storage.
    """
    if timestamp == LATEST_TIMESTAMP:
        return TimestampedOffset(end_offset, NO_TIMESTAMP, log.epochs.latest)
    if timestamp == LATEST_TIERED_TIMESTAMP:
        return _NOT_FOUND
    epoch = log.epochs.epoch_of(log.start_offset)
    return TimestampedOffset(log.start_offset, NO_TIMESTAMP, epoch)


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


# OffsetForLeaderEpoch


def answer_epochs(
    request: OffsetForLeaderEpochRequest, replicas: Replicas
) -> OffsetForLeaderEpochResponse:
    """Epoch and offset of each partition; both -1 for an epoch that the leader does not know.

    FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER.
    """
    return OffsetForLeaderEpochResponse(
        topics=[
            EpochEndTopic(
                topic=topic.topic,
                partitions=[_end(topic.topic, asked, replicas) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end(topic: str, asked: AskedEpoch, replicas: Replicas) -> EpochEnd:
    result = EpochEnd(error_code=Error.NONE, partition=asked.partition)
    try:
        partition = replicas.get(TopicPartition(topic, asked.partition))
        partition.require_leader(asked.current_leader_epoch)
        result.leader_epoch, result.end_offset = partition.epoch_end(asked.leader_epoch)
    except ApiError as error:
        result.error_code = error.error
    return result
