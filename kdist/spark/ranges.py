"""Cuts the offsets of partitions into ranges, one for each Spark task (pure).

Each partition is one range, unless `maxRecordsPerPartition` asks for smaller ranges, or
`minPartitions` for more of them in all: then partitions are cut in proportion to their size.
Source: Spark's `KafkaOffsetRangeCalculator`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from kdist.model import TopicPartition


class Range(NamedTuple):
    """Offsets of one partition from `start` up to, not including, `end`."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def cut(
    ranges: Iterable[Range], partitions_min: int | None = None, records_max: int | None = None
) -> list[Range]:
    """The ranges, without the empty ones, cut as asked for; each offset is in exactly one."""
    found = [each for each in ranges if each.size > 0]
    if records_max is not None:
        found = [part for each in found for part in _parts(each, -(-each.size // records_max))]
    if partitions_min is None or partitions_min <= len(found):
        return found
    total = sum(each.size for each in found)
    return [
        part
        for each in found
        for part in _parts(each, max(1, round(each.size / total * partitions_min)))
    ]


def _parts(whole: Range, count: int) -> Iterator[Range]:
    """`count` parts as even as possible; fewer, if there are fewer offsets."""
    count = min(count, whole.size)
    bounds = [whole.start + whole.size * number // count for number in range(count + 1)]
    return (Range(whole.partition, start, end) for start, end in pairwise(bounds))
