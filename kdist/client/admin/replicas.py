"""How far each replica is behind its partition's leader: in records, in bytes, in time.

Every broker is asked itself, as only it knows where its replicas end: ListOffsets with the replica
id of a client that debugs is answered by followers too, with the log end offset; DescribeLogDirs
has the size. A broker that does not answer in time has no figures. All are asked at once, so the
figures of a partition that is being written differ by what was written meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from kdist.client.admin.asking import ask_brokers
from kdist.client.admin.disks import log_directories
from kdist.client.admin.health import PATIENCE_S
from kdist.client.admin.topics import Partition, Topic
from kdist.client.cluster import Cluster, NoBroker, in_topics
from kdist.client.fetch_once import fetch_at
from kdist.errors import ApiError
from kdist.model import TopicPartition
from kdist.protocol.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kdist.protocol.offset_for_leader_epoch import DEBUG_CONSUMER
from kdist.records.batch import BatchHeader

_ONE_BATCH_BYTES = 1  # a fetch returns a whole batch nevertheless


class ReplicaState(NamedTuple):
    """A replica. Its lag is what the leader has and it lacks; None where that cannot be told.

    `lag_bytes` is known where both logs begin at the same offset. `lag_ms` is the age of the oldest
    committed record that it lacks, by that record's timestamp.
    """

    broker: int
    is_leader: bool
    is_in_sync: bool
    end_offset: int | None = None
    lag_records: int | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None


class _Log(NamedTuple):
    """What a broker tells of a replica."""

    start_offset: int
    end_offset: int
    size_bytes: int | None


_Told = Mapping[int, Mapping[TopicPartition, _Log]]  # by broker


async def describe_replicas(
    cluster: Cluster, topics: Iterable[Topic], now_ms: int
) -> dict[TopicPartition, list[ReplicaState]]:
    """The replicas of each partition of these topics, the preferred leader first."""
    parts = {
        TopicPartition(topic.name, each.number): each
        for topic in topics
        for each in topic.partitions
    }
    told = await _ask_all(cluster, parts)
    states = {key: _states(key, each, told) for key, each in parts.items()}
    behind = {
        (key, each.end_offset)
        for key, replicas in states.items()
        for each in replicas
        if each.lag_records and each.end_offset is not None
    }
    times = await _times(cluster, behind)

    def aged(key: TopicPartition, each: ReplicaState) -> ReplicaState:
        if each.lag_records == 0:
            return each._replace(lag_ms=0)
        time_ms = None if each.end_offset is None else times.get((key, each.end_offset))
        return each if time_ms is None else each._replace(lag_ms=max(0, now_ms - time_ms))

    return {key: [aged(key, each) for each in replicas] for key, replicas in states.items()}


def _states(key: TopicPartition, partition: Partition, told: _Told) -> list[ReplicaState]:
    leaders = told.get(-1 if partition.leader is None else partition.leader, {}).get(key)
    return [
        review(broker, partition, told.get(broker, {}).get(key), leaders)
        for broker in partition.replicas
    ]


def review(
    broker: int, partition: Partition, log: _Log | None, leaders: _Log | None
) -> ReplicaState:
    """A replica, by its own log and its leader's (pure)."""
    is_leader, is_in_sync = broker == partition.leader, broker in partition.isr
    if log is None:
        return ReplicaState(broker, is_leader, is_in_sync)
    records = size = None
    if leaders is not None:
        records = max(0, leaders.end_offset - log.end_offset)
        is_same_start = leaders.start_offset == log.start_offset
        if is_same_start and leaders.size_bytes is not None and log.size_bytes is not None:
            size = max(0, leaders.size_bytes - log.size_bytes)
    return ReplicaState(broker, is_leader, is_in_sync, log.end_offset, records, size)


async def _ask_all(cluster: Cluster, parts: Mapping[TopicPartition, Partition]) -> _Told:
    of_broker: defaultdict[int, list[TopicPartition]] = defaultdict(list)
    for key, each in parts.items():
        for broker in each.replicas:
            of_broker[broker].append(key)
    answers = await ask_brokers(
        cluster,
        lambda broker: _ask(cluster, broker, of_broker[broker]),
        [broker for broker in of_broker if broker in cluster.brokers],
        PATIENCE_S,
    )
    return {broker: logs for broker, logs in answers.items() if not isinstance(logs, ApiError)}


async def _ask(
    cluster: Cluster, broker: int, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, _Log]:
    starts, ends, directories = await asyncio.gather(
        _offsets(cluster, broker, partitions, EARLIEST_TIMESTAMP),
        _offsets(cluster, broker, partitions, LATEST_TIMESTAMP),
        log_directories(cluster, broker),
    )
    sizes = {
        each.partition: each.size_bytes
        for directory in directories
        for each in directory.replicas
        if not each.is_future
    }
    return {
        key: _Log(starts[key], end, sizes.get(key)) for key, end in ends.items() if key in starts
    }


async def _offsets(
    cluster: Cluster, broker: int, partitions: Sequence[TopicPartition], timestamp: int
) -> dict[TopicPartition, int]:
    """By this broker's own log; those left out of which it has none."""
    topics = in_topics(
        ListOffsetsTopic,
        partitions,
        lambda key: ListOffsetsPartition(partition_index=key.partition, timestamp=timestamp),
    )
    answer = await cluster.ask(ListOffsetsRequest(replica_id=DEBUG_CONSUMER, topics=topics), broker)
    return {
        TopicPartition(topic.name, each.partition_index): each.offset
        for topic in answer.topics
        for each in topic.partitions
        if not each.error_code
    }


async def _times(
    cluster: Cluster, behind: Collection[tuple[TopicPartition, int]]
) -> dict[tuple[TopicPartition, int], int]:
    """The timestamps of the records at these offsets, of those that a consumer may read."""

    async def one(key: TopicPartition, offset: int) -> int | None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                batches = await fetch_at(cluster, key, offset, _ONE_BATCH_BYTES)
        except (ApiError, NoBroker, TimeoutError):
            return None
        return next((_first_time(header) for header in batches.headers()), None)

    wanted = sorted(behind)
    found = await asyncio.gather(*(one(key, offset) for key, offset in wanted))
    return {
        each: time_ms for each, time_ms in zip(wanted, found, strict=True) if time_ms is not None
    }


def _first_time(header: BatchHeader) -> int:
    """The timestamp of a batch's first record."""
    return header.max_timestamp if header.is_log_append_time else header.base_timestamp
