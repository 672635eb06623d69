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

from kdist.client.cluster import Cluster, NoBroker
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
    known, unknown = await ask_ranges_once(cluster, partitions)
    if unknown:  # leaders that have moved are known by now
        more, unknown = await ask_ranges_once(cluster, unknown)
        known |= more
    return Ranges(known, unknown)


async def ask_ranges_once(cluster: Cluster, partitions: Collection[TopicPartition]) -> Ranges:
    """As `ask_ranges`, but nobody is asked again."""
    starts, ends = await asyncio.gather(
        *(
            list_offsets_once(
                cluster, dict.fromkeys(partitions, timestamp), is_committed_only=False
            )
            for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        )
    )
    known, unknown = {}, {}
    for each in partitions:
        start, end = starts[each], ends[each]
        if failed := start.error_code or end.error_code:
            unknown[each] = Error.of(failed).name
        elif start.answer is not None and end.answer is not None:
            first = start.answer.offset
            known[each] = OffsetRange(first, max(first, end.answer.offset))
    return Ranges(known, unknown)


class _Head(NamedTuple):
    """What tells of the records behind: the first one's timestamp, and their mean size."""

    position: int
    timestamp: int
    record_bytes: float


class Lags(NamedTuple):
    """Partitions' lags; and why those of others are unknown."""

    known: dict[TopicPartition, Lag]
    unknown: dict[TopicPartition, str]


class LagMeter:
    """Measures lags by the first batch behind, which comes whole over the link, however large it
    is: so it is asked for once, and again only when the position has moved. Owner: the flow.
    """

    def __init__(self, source: Cluster) -> None:
        self._source = source
        self._heads: dict[TopicPartition, _Head] = {}

    async def measure(
        self,
        positions: Mapping[TopicPartition, int],
        ranges: Mapping[TopicPartition, OffsetRange],
        now_ms: int,
    ) -> Lags:
        """The lag from each position on, in partitions that have these ranges.

        Many are asked at once: one after the other, thousands would take minutes over a slow link.
        """
        lags = Lags({}, {})
        turn = asyncio.Semaphore(_ASKED_AT_ONCE)
        heads, self._heads = self._heads, {}

        async def ask(partition: TopicPartition) -> None:
            start, end = ranges[partition]
            position = max(positions[partition], start)
            if (records := end - position) <= 0:
                lags.known[partition] = NO_LAG
                return
            head = heads.get(partition)
            if head is None or head.position != position:
                async with turn:
                    try:
                        head = await self._ask_head(partition, position)
                    except (ApiError, NoBroker) as error:
                        lags.unknown[partition] = str(error)
                        return
            if head is None:
                lags.known[partition] = Lag(records, 0.0, 0.0)
                return
            self._heads[partition] = head
            age_s = _age_s(head.timestamp, now_ms)
            lags.known[partition] = Lag(records, records * head.record_bytes, age_s)

        await asyncio.gather(*map(ask, positions))
        return lags

    async def _ask_head(self, partition: TopicPartition, position: int) -> _Head | None:
        """None if compaction has left nothing from there on. `ApiError`, `NoBroker`."""
        header = next((await fetch_at(self._source, partition, position, 1)).headers(), None)
        if header is None:
            return None
        record_bytes = header.size / max(header.record_count, 1)
        return _Head(position, first_timestamp(header), record_bytes)


def _age_s(timestamp_ms: int, now_ms: int) -> float:
    """A record's age; 0 for one without a timestamp, as written by producers before Kafka 0.10."""
    return max(0.0, (now_ms - timestamp_ms) / 1000) if timestamp_ms >= 0 else 0.0
