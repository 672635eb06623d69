"""How far groups are behind what they have committed (pure).

A lag in records is what lies between the committed offset and the partition's end. A lag in seconds
is the age, at most, of the oldest of those records: by when a look last found the end at or before
the committed offset. No record is read for it. If no look did, it is the time since the first look,
and the true age is greater.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kdist.groups.group import Group
from kdist.model import TopicPartition

# Of a year's looks, one every 10 s, a partition keeps 127 at most: 2 KiB.
_OVERSTATED_MAX = 1.2  # what forgetting looks may make of a lag's seconds
_THINNED_EVERY = 32  # looks; going through them takes some 10 us


class Lag(NamedTuple):
    """How far a group is behind in a topic: records of all partitions, seconds of the worst."""

    records: int
    seconds: float

    def plus(self, other: Lag) -> Lag:
        return Lag(self.records + other.records, max(self.seconds, other.seconds))


class SeenEnds:
    """The ends of one partition, rising, and when each was last seen.

    Old looks are forgotten, but no more than this allows: a lag's seconds exceed the true age by
    the time between two looks, or by a fifth, whichever is more.
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
        """Forget each look without which the one before it still serves for the one after it."""
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

    def keep_only(self, partitions: set[TopicPartition]) -> None:
        """Forget all others."""
        for partition in self._seen.keys() - partitions:
            del self._seen[partition]

    def of(self, group: Group, now_ms: int) -> dict[str, Lag]:
        """The group's lag by topic; partitions whose end is not known yet do not count."""
        found: dict[str, Lag] = {}
        for partition in group.offsets:
            if (seen := self._seen.get(partition)) is not None:
                lag = seen.lag(group.offsets.get(partition).offset, now_ms)
                before = found.get(partition.topic)
                found[partition.topic] = lag if before is None else before.plus(lag)
        return found


def worst(lags: Mapping[tuple[str, str], Lag], limit: int) -> Iterable[tuple[str, str]]:
    """The keys of the greatest lags, at most `limit`: by time, then records."""
    if len(lags) <= limit:
        return lags
    return sorted(lags, key=lambda key: (-lags[key].seconds, -lags[key].records, key))[:limit]
