"""For how long partitions took no records, by the acknowledgements of their producers (pure).

A partition is unavailable from one acknowledgement to the next: producers send to each partition
ten times a second, whatever is unanswered. Of each fault the longest such pause counts, up to the
next fault.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.checker import Anomaly
from tests.chaos.history import OK, Answered, Event, Sent

SLACK, SLACK_S = 1.5, 1.0  # brokers, clients and their judge share two cores


class Occurrence(NamedTuple):
    """A fault that was injected, and which partitions its target led."""

    kind: str
    at_s: float
    led: frozenset[int]
    is_counted: bool = True
    """Whether all replicas were in sync before, so that what follows is due to this fault alone."""


class Outage(NamedTuple):
    """The longest time without an acknowledgement in a partition, after a fault."""

    kind: str
    partition: int
    was_led: bool
    seconds: float


def acknowledged(events: Iterable[Event]) -> dict[int, list[float]]:
    """When records of each partition were acknowledged, in order."""
    found: dict[int, list[float]] = defaultdict(list)
    for event in events:
        if isinstance(event, Answered) and event.outcome == OK:
            found[event.partition].append(event.at_s)
    return {partition: sorted(found[partition]) for partition in sorted(found)}


def outages(
    acks: Mapping[int, Sequence[float]], faults: Sequence[Occurrence], end_s: float
) -> list[Outage]:
    """Of each counted fault and partition; `end_s` is when producers stopped."""
    ends_s = [fault.at_s for fault in faults[1:]] + [end_s]
    return [
        Outage(fault.kind, partition, partition in fault.led, _longest(times, fault.at_s, until_s))
        for fault, until_s in zip(faults, ends_s, strict=True)
        if fault.is_counted
        for partition, times in acks.items()
    ]


def _longest(times: Sequence[float], from_s: float, until_s: float) -> float:
    """The longest pause between the two; what is longer is the next fault's."""
    points = [from_s, *times[bisect_left(times, from_s) : bisect_left(times, until_s)], until_s]
    return max(after - before for before, after in pairwise(points))


def too_long(found: Iterable[Outage], limits_s: Mapping[str, float | None]) -> Iterator[Anomaly]:
    """The outages that were longer than promised, by more than a busy machine accounts for.

    `limits_s`: for how long a partition may be unavailable after each kind, where that is promised.
    """
    for outage in found:
        limit_s = limits_s.get(outage.kind)
        if limit_s is not None and outage.seconds > SLACK * limit_s + SLACK_S:
            text = f"partition {outage.partition} for {outage.seconds:.1f} s after {outage.kind}"
            yield Anomaly("unavailable", f"{text}, {limit_s:.1f} s at most were promised")


def latencies(events: Iterable[Event]) -> list[float]:
    """How long each acknowledged record took, sorted."""
    return sorted(seconds for _, seconds in timed(events))


def timed(events: Iterable[Event]) -> Iterator[tuple[float, float]]:
    """When each acknowledged record was sent, and how long it took."""
    sent: dict[tuple[str, int, int], float] = {}
    for event in events:
        if isinstance(event, Sent):
            sent[event.producer, event.partition, event.number] = event.at_s
        elif isinstance(event, Answered) and event.outcome == OK:
            at_s = sent[event.producer, event.partition, event.number]
            yield at_s, event.at_s - at_s


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the ordered values are."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
