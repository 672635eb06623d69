"""Asks partition leaders for offsets: the first, the end, that of a time, a leader epoch's end.

For groups' committed offsets see `admin/offsets.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from kdist.client.cluster import MISSING_S, Cluster, Outcome, Outcomes, in_topics
from kdist.model import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, OffsetRange, TopicPartition
from kdist.protocol.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kdist.protocol.offset_for_leader_epoch import (
    CONSUMER,
    UNDEFINED,
    AskedEpoch,
    AskedEpochTopic,
    OffsetForLeaderEpochRequest,
)

TIMESTAMPS = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}


class OffsetAndTimestamp(NamedTuple):
    """A record found by its time: its offset, its timestamp in ms, and its leader epoch."""

    offset: int
    timestamp: int = NO_TIMESTAMP
    leader_epoch: int = NO_EPOCH


class OffsetAndMetadata(NamedTuple):
    """A committed offset, that of the next record to read, with metadata (any text).

    `leader_epoch` is that of the last record read.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


async def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    *,
    is_committed_only: bool,
    missing_s: float = MISSING_S,
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """For each partition the first record at or after its timestamp (ms, or one of `TIMESTAMPS`).

    None where there is none. With `is_committed_only`, the end is the last stable offset. A
    partition that does not exist is waited for as `Cluster.ask_leaders` says.
    """
    ask = _asking(cluster, timestamps, is_committed_only)
    return await cluster.ask_leaders(timestamps, ask, missing_s)


async def list_offsets_once(
    cluster: Cluster, timestamps: Mapping[TopicPartition, int], *, is_committed_only: bool
) -> dict[TopicPartition, Outcome]:
    """As `list_offsets`, but without retries: an answer or an error for each partition."""
    ask = _asking(cluster, timestamps, is_committed_only)
    return await cluster.ask_leaders_once(timestamps, ask)


def _asking(
    cluster: Cluster, timestamps: Mapping[TopicPartition, int], is_committed_only: bool
) -> Callable[[int, list[TopicPartition]], Awaitable[Outcomes]]:
    async def ask(leader: int, wanted: list[TopicPartition]) -> Outcomes:
        topics = in_topics(
            ListOffsetsTopic,
            wanted,
            lambda key: ListOffsetsPartition(
                partition_index=key.partition, timestamp=timestamps[key]
            ),
        )
        request = ListOffsetsRequest(topics=topics, isolation_level=int(is_committed_only))
        answer = await cluster.ask(request, leader)
        return {
            TopicPartition(topic.name, each.partition_index): Outcome(
                each.error_code,
                None
                if each.error_code or each.offset == NO_OFFSET
                else OffsetAndTimestamp(each.offset, each.timestamp, each.leader_epoch),
            )
            for topic in answer.topics
            for each in topic.partitions
        }

    return ask


async def find_offsets(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    timestamp: int,
    *,
    is_committed_only: bool = False,
) -> dict[TopicPartition, int]:
    """The offsets alone, for one timestamp; `NO_OFFSET` where no record is that late."""
    wanted = dict.fromkeys(partitions, timestamp)
    found = await list_offsets(cluster, wanted, is_committed_only=is_committed_only)
    return {key: NO_OFFSET if each is None else each.offset for key, each in found.items()}


async def find_ranges(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, is_committed_only: bool = False
) -> dict[TopicPartition, OffsetRange]:
    """Each partition's offsets, as a half-open range from the first to the end."""
    wanted = list(partitions)
    starts, ends = [
        await find_offsets(cluster, wanted, timestamp, is_committed_only=is_committed_only)
        for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
    ]
    return {each: OffsetRange(starts[each], max(starts[each], ends[each])) for each in wanted}


async def find_epoch_ends(
    cluster: Cluster, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The end offset of each partition's leader epoch, or of the newest one before it.

    An end before an offset that was read says that it was lost (KIP-101, KIP-320). Partitions
    whose leader does not know are left out.
    """

    async def ask(leader: int, wanted: list[TopicPartition]) -> Outcomes:
        topics = in_topics(
            AskedEpochTopic,
            wanted,
            lambda key: AskedEpoch(partition=key.partition, leader_epoch=epochs[key]),
            name="topic",
        )
        request = OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=topics)
        answer = await cluster.ask(request, leader)
        return {
            TopicPartition(topic.topic, each.partition): Outcome(each.error_code, each.end_offset)
            for topic in answer.topics
            for each in topic.partitions
        }

    found = await cluster.ask_leaders(epochs, ask)
    return {key: end for key, end in found.items() if end != UNDEFINED}
