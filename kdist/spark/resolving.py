"""Resolves a read's options to partitions, and to the offsets where the read begins and ends.

The driver asks the brokers once for each read. Offsets given by partition must name every partition
that is read, as in Spark's connector, so that none is read whole by mistake.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping

from kdist.client.cluster import Cluster, did_you_mean
from kdist.client.consumer.settings import read_settings
from kdist.client.offsets import OffsetAndTimestamp, list_offsets
from kdist.errors import UserError
from kdist.model import TopicPartition
from kdist.spark.asking import ask_once
from kdist.spark.options import (
    LATEST,
    AtOffsets,
    AtTime,
    AtTimes,
    ByPartition,
    Everywhere,
    Place,
    ReadOptions,
    Selection,
)
from kdist.spark.ranges import Range, cut
from kdist.spark.security_file import read_security


def plan_read(options: ReadOptions) -> list[Range]:
    """The ranges to read, one for each task; `UserError` or `ApiError` if there is an error."""
    security = read_security(options.security_file)
    settings = read_settings({"client_id": "kdist-spark", **options.consumer, **security})
    return ask_once(
        options.bootstrap, settings, lambda cluster: Resolver(cluster, options).ranges()
    )


class Resolver:
    """Resolves one read's options by asking `cluster`."""

    def __init__(self, cluster: Cluster, options: ReadOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._is_committed_only = options.consumer.get("isolation_level") == "read_committed"

    async def ranges(self) -> list[Range]:
        """The ranges to read, one for each task."""
        options = self._options
        partitions = await self._partitions(options.selection)
        starts, ends = await asyncio.gather(
            self._offsets(partitions, options.start, "starting"),
            self._offsets(partitions, options.end, "ending"),
        )
        whole = [Range(each, starts[each], ends[each]) for each in partitions]
        for partition, start, end in whole:
            if start <= end:
                continue
            if isinstance(options.end, AtOffsets | AtTime | AtTimes):
                raise UserError(f"{partition} is to be read from {start}, but only up to {end}")
            if isinstance(options.start, AtOffsets) and options.fail_on_data_loss:
                raise UserError(
                    f"{partition} is to be read from {start}, but ends at {end} now; with"
                    " failOnDataLoss false, nothing of it would be read"
                )
        return cut(whole, options.partitions_min, options.records_max)

    # Partitions

    async def _partitions(self, selection: Selection) -> list[TopicPartition]:
        if selection.pattern:
            return await self._matching(re.compile(selection.pattern))
        counts = {
            topic: await self._count(topic)
            for topic in selection.topics or sorted({each.topic for each in selection.partitions})
        }
        for topic, partition in selection.partitions:
            if partition >= counts[topic]:
                raise UserError(f"{topic} has {counts[topic]} partitions, and no {partition}")
        if selection.partitions:
            return list(selection.partitions)
        return _all_of(counts)

    async def _count(self, topic: str) -> int:
        return len((await self._cluster.topic(topic)).partitions)

    async def _matching(self, pattern: re.Pattern[str]) -> list[TopicPartition]:
        known = await self._cluster.metadata(None)
        names = [each.name or "" for each in known.topics if not each.is_internal]
        matching = sorted(name for name in names if pattern.fullmatch(name))
        if not matching:
            hint = did_you_mean(pattern.pattern, names)
            raise UserError(f"no topic matches the pattern {pattern.pattern}{hint}")
        return _all_of({name: await self._count(name) for name in matching})

    # Offsets

    async def _offsets(
        self, partitions: list[TopicPartition], place: Place, which: str
    ) -> ByPartition:
        match place:
            case Everywhere(offset):
                return await self._known(dict.fromkeys(partitions, offset))
            case AtOffsets(offsets):
                _require_all(offsets, partitions, f"{which}Offsets")
                words = {each: offset for each, offset in offsets.items() if offset < 0}
                return {**offsets, **await self._known(words)}
            case AtTime(timestamp_ms):
                return await self._at_times(dict.fromkeys(partitions, timestamp_ms), which)
            case AtTimes(timestamps_ms):
                _require_all(timestamps_ms, partitions, f"{which}OffsetsByTimestamp")
                return await self._at_times(timestamps_ms, which)

    async def _known(self, words: Mapping[TopicPartition, int]) -> ByPartition:
        """The offsets that EARLIEST and LATEST stand for; the protocol has the same values."""
        found = await self._listed(words)
        return {key: each.offset for key, each in found.items() if each is not None}

    async def _at_times(self, times_ms: Mapping[TopicPartition, int], which: str) -> ByPartition:
        found = await self._listed(times_ms)
        late = [key for key, each in found.items() if each is None]
        if late and which == "starting" and self._options.start_strategy == "error":
            raise UserError(
                f"{late[0]} has no record at or after {times_ms[late[0]]} ms: with"
                " startingOffsetsByTimestampStrategy latest it would be read from its end"
            )
        ends = await self._known(dict.fromkeys(late, LATEST))
        return {key: ends[key] if each is None else each.offset for key, each in found.items()}

    async def _listed(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return await list_offsets(self._cluster, wanted, is_committed_only=self._is_committed_only)


def _all_of(counts: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, each) for topic, count in counts.items() for each in range(count)]


def _require_all(
    said: Mapping[TopicPartition, int], partitions: Iterable[TopicPartition], name: str
) -> None:
    wanted = set(partitions)
    missing, foreign = sorted(wanted - said.keys()), sorted(said.keys() - wanted)
    if missing:
        raise UserError(f"{name} says nothing of {missing[0]}: it must name every partition read")
    if foreign:
        raise UserError(f"{name} names {foreign[0]}, which is not read")
