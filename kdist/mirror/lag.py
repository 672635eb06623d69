"""The lag of a mirrored partition (asks the source).

    records   the source's high watermark, less the position
    bytes     an estimate: those records, times the mean record size of the first batch of them
    seconds   the age of the first record that is not in the target; 0 if there is none, or if it
              has no timestamp

Offsets of control records and of records compacted away count until the position is past them, and
so do those behind a transaction that is open: if that is never ended, the lag grows.
records that retention has deleted do not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import NamedTuple

from kdist.client.cluster import Cluster, NoBroker, Outcome
from kdist.client.fetch_once import fetch_at
from kdist.client.offsets import list_offsets_once
from kdist.errors import ApiError, Error
from kdist.mirror.rewritten_batch import RewrittenBatch, first_timestamp
from kdist.model import OffsetRange, TopicPartition
from kdist.protocol.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP


class Lag(NamedTuple):
    """The lag of one partition; `bytes_about` is an estimate."""

    records: int
    bytes_about: float
    seconds: float


NO_LAG = Lag(0, 0.0, 0.0)
_ASKED_AT_ONCE = 100  # each answer has a whole batch


def held_lag(oldest: RewrittenBatch, records: int, now_ms: int) -> Lag:
    """The lag of so many records, of which `oldest` is the first batch."""
    return Lag(records, records * len(oldest) / oldest.count, _age_s(oldest.timestamp, now_ms))


class Ranges(NamedTuple):
    """Partitions' offsets up to their high watermarks; and why those of others are unknown."""

    known: dict[TopicPartition, OffsetRange]
    unknown: dict[TopicPartition, str]


async def ask_ranges(cluster: Cluster, partitions: Collection[TopicPartition]) -> Ranges:
    """The offsets of those partitions whose leader answers, soon. `ApiError`, `NoBroker`.

    Not of committed records only: if a transaction is never ended, these end where it begins.
    """
    ends: list[Mapping[TopicPartition, Outcome]] = []
    for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP):
        wanted = dict.fromkeys(partitions, timestamp)
        found = await list_offsets_once(cluster, wanted, is_committed_only=False)
        again = {each: timestamp for each in wanted if found[each].error_code}
        if again:  # leaders that have moved are known by now
            found |= await list_offsets_once(cluster, again, is_committed_only=False)
        ends.append(found)
    known, unknown = {}, {}
    for each in partitions:
        start, end = (found[each] for found in ends)
        if failed := start.error_code or end.error_code:
            unknown[each] = Error.of(failed).name
        elif start.answer is not None and end.answer is not None:
            first = start.answer.offset
            known[each] = OffsetRange(first, max(first, end.answer.offset))
    return Ranges(known, unknown)


async def ask_lags(
    cluster: Cluster,
    positions: Mapping[TopicPartition, int],
    ranges: Mapping[TopicPartition, OffsetRange],
    now_ms: int,
) -> dict[TopicPartition, Lag]:
    """The lag from each position on, in partitions that have these ranges.

    Where a leader no longer answers, bytes and seconds are 0. Many are asked at once: one after the
    other, thousands would take minutes over a slow link.
    """
    turn = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def ask(partition: TopicPartition) -> Lag:
        async with turn:
            position, offsets = positions[partition], ranges[partition]
            try:
                return await ask_lag(cluster, partition, position, offsets, now_ms)
            except (ApiError, NoBroker):
                return Lag(max(0, offsets.end - max(position, offsets.start)), 0.0, 0.0)

    return dict(zip(positions, await asyncio.gather(*map(ask, positions)), strict=True))


async def ask_lag(
    cluster: Cluster, partition: TopicPartition, position: int, offsets: OffsetRange, now_ms: int
) -> Lag:
    """The lag from `position` on, in a partition that has these offsets. `ApiError`."""
    position = max(position, offsets.start)
    records = offsets.end - position
    if records <= 0:
        return NO_LAG
    header = next((await fetch_at(cluster, partition, position, 1)).headers(), None)
    if header is None:
        return Lag(records, 0.0, 0.0)
    record_bytes = header.size / max(header.record_count, 1)
    return Lag(records, records * record_bytes, _age_s(first_timestamp(header), now_ms))


def _age_s(timestamp_ms: int, now_ms: int) -> float:
    """A record's age; 0 for one without a timestamp, as written by producers before Kafka 0.10."""
    return max(0.0, (now_ms - timestamp_ms) / 1000) if timestamp_ms >= 0 else 0.0
