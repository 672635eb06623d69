"""How far groups are behind what they have committed (pure).

A lag in records is what lies between the committed offset and the partition's end. A lag in seconds
is the age, at most, of the oldest of those records: by when a sample last had the end at or before
the committed offset. No record is read for it. If no sample had, it is the time since the first
one, and the true age is greater.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Container, Mapping
from heapq import heappush, heappushpop
from typing import NamedTuple

from kdist.groups.group import NOTHING_COMMITTED, Group
from kdist.model import TopicPartition
from kdist.runtime.steps import CountedSteps

# Of a year's samples, one every 10 s, a partition keeps 127 at most: 2 KiB.
_OVERSTATED_MAX = 1.2  # what forgetting samples may make of a lag's seconds
_LAG_US = 2
_THINNED_EVERY = 32  # samples; going through them takes some 10 us


class Lag(NamedTuple):
    """How far a group is behind in a topic: records of all partitions, seconds of the worst."""

    records: int
    seconds: float

    def plus(self, other: Lag) -> Lag:
        return Lag(self.records + other.records, max(self.seconds, other.seconds))


class SeenEnds:
    """The ends of one partition, rising, and when each was last seen.

    Old samples are forgotten, but no more than this allows: a lag's seconds exceed the true age by
    the time between two samples, or by a fifth, whichever is more.
    """

    __slots__ = ("_ends", "_times_ms")

    def __init__(self) -> None:
        self._ends = array("q")
        self._times_ms = array("q")

    def add(self, end: int, now_ms: int) -> None:
        while self._ends and self._ends[-1] >= end:  # the same again, or the log was truncated
            self._ends.pop()
            self._times_ms.pop()
        self._ends.append(end)
        self._times_ms.append(now_ms)
        if len(self._ends) % _THINNED_EVERY == 0:
            self._thin(now_ms)

    def _thin(self, now_ms: int) -> None:
        """Forget each sample without which the one before it still serves for the one after it."""
        ends, times_ms = self._ends, self._times_ms
        kept_ends, kept_ms = ends[:1], times_ms[:1]
        age_ms = now_ms - times_ms[0]
        for end, time_ms, next_ms in zip(ends[1:], times_ms[1:], times_ms[2:], strict=False):
            if age_ms > _OVERSTATED_MAX * (now_ms - next_ms):
                kept_ends.append(end)
                kept_ms.append(time_ms)
                age_ms = now_ms - time_ms
        self._ends, self._times_ms = kept_ends + ends[-1:], kept_ms + times_ms[-1:]

    def lag(self, committed: int, now_ms: int) -> Lag:
        records = max(0, self._ends[-1] - committed)
        since = max(0, bisect_right(self._ends, committed) - 1)
        return Lag(records, (now_ms - self._times_ms[since]) / 1000 if records else 0.0)


class GroupLags:
    """What was seen of the partitions for which groups have committed. Owner: the broker."""

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, SeenEnds] = {}

    def note(self, ends: Mapping[TopicPartition, int], now_ms: int) -> None:
        """Take in what partitions' leaders say of their ends."""
        for partition, end in ends.items():
            self._seen.setdefault(partition, SeenEnds()).add(end, now_ms)

    def keep_only(self, partitions: Container[TopicPartition]) -> CountedSteps:
        """Forget all others."""
        for partition in list(self._seen):
            if partition not in partitions:
                del self._seen[partition]
            yield 1

    def of(self, group: Group, now_ms: int, lags: WorstLags) -> CountedSteps:
        """Add the group's lag by topic; partitions whose end is not known yet do not count."""
        found: dict[str, Lag] = {}
        for partition in group.offsets.all():
            seen = self._seen.get(partition)
            if seen is not None and group.offsets.get(partition) is not NOTHING_COMMITTED:
                lag = seen.lag(group.offsets.get(partition).offset, now_ms)
                before = found.get(partition.topic)
                found[partition.topic] = lag if before is None else before.plus(lag)
            yield _LAG_US
        for topic, lag in found.items():
            lags.add(group.group_id, topic, lag)
            yield _LAG_US


class WorstLags:
    """The greatest lags that are added, at most `limit`: by time, then records."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heap: list[tuple[float, int, str, str]] = []
        self.hidden = 0  # those that were too many

    def add(self, group_id: str, topic: str, lag: Lag) -> None:
        entry = (lag.seconds, lag.records, group_id, topic)
        if len(self._heap) < self._limit:
            heappush(self._heap, entry)
        else:
            heappushpop(self._heap, entry)
            self.hidden += 1

    def worst(self) -> list[tuple[str, str, Lag]]:
        """Group, topic and lag of each, the greatest first."""
        greatest = sorted(self._heap, reverse=True)
        return [
            (group, topic, Lag(records, seconds)) for seconds, records, group, topic in greatest
        ]
