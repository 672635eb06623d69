"""The lag of a mirrored partition (asks the source).

    records   the source's log end offset, less the position
    bytes     an estimate: those records, times the mean record size of the first batch of them
    seconds   the age of the first record that is not in the target; 0 if there is none, or if it
              has no timestamp

Offsets of control records and of records compacted away count until the position is past them;
records that retention has deleted do not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from kdist.client.cluster import Cluster
from kdist.client.fetch_once import fetch_at
from kdist.mirror.rewritten_batch import RewrittenBatch
from kdist.model import OffsetRange, TopicPartition


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


async def ask_lags(
    cluster: Cluster,
    positions: Mapping[TopicPartition, int],
    ranges: Mapping[TopicPartition, OffsetRange],
    now_ms: int,
) -> dict[TopicPartition, Lag]:
    """The lag from each position on, in partitions that have these ranges. `ApiError`.

    Many are asked at once: one after the other, thousands would take minutes over a slow link.
    """
    turn = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def ask(partition: TopicPartition) -> Lag:
        async with turn:
            position, offsets = positions[partition], ranges[partition]
            return await ask_lag(cluster, partition, position, offsets, now_ms)

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
    return Lag(records, records * record_bytes, _age_s(header.base_timestamp, now_ms))


def _age_s(timestamp_ms: int, now_ms: int) -> float:
    """A record's age; 0 for one without a timestamp, as written by producers before Kafka 0.10."""
    return max(0.0, (now_ms - timestamp_ms) / 1000) if timestamp_ms >= 0 else 0.0
