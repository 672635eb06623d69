"""How long records take while partitions move, beside how long they take else (pure).

Only records that were sent while nothing was broken count: neither from a fault until all replicas
were in sync again, nor within `MARGIN_S` of that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.chaos.availability import quantile, timed
from tests.chaos.checker import Anomaly
from tests.chaos.history import Event

MARGIN_S = 1.0
TIMES, SLACK_S = 2.0, 0.05  # brokers, clients and their judge share two cores
COUNT_MIN = 1000  # records, of which the p99 says something


class Span(NamedTuple):
    """From when to when, by the clock of the history."""

    begin_s: float
    end_s: float


class Pace(NamedTuple):
    """How long records took, in seconds."""

    count: int
    median: float
    p99: float


class Paces(NamedTuple):
    """While partitions moved, and while none did."""

    still: Pace
    moving: Pace


def paces(events: Iterable[Event], moving: Sequence[Span], broken: Sequence[Span]) -> Paces:
    """Of the records that were acknowledged; the spans of each kind are in order, and apart."""
    widened = [Span(each.begin_s - MARGIN_S, each.end_s + MARGIN_S) for each in broken]
    found: dict[bool, list[float]] = {False: [], True: []}
    for at_s, seconds in timed(events):
        if not _is_within(at_s, widened):
            found[_is_within(at_s, moving)].append(seconds)
    return Paces(_pace(found[False]), _pace(found[True]))


def _is_within(at_s: float, spans: Sequence[Span]) -> bool:
    position = bisect_right(spans, at_s, key=lambda span: span.begin_s) - 1
    return position >= 0 and at_s < spans[position].end_s


def _pace(seconds: list[float]) -> Pace:
    if not seconds:
        return Pace(0, 0.0, 0.0)
    seconds.sort()
    return Pace(len(seconds), quantile(seconds, 0.5), quantile(seconds, 0.99))


def too_slow(found: Paces) -> Iterator[Anomaly]:
    """That moves slow producers down by more than is wanted; nothing if too few records tell."""
    still, moving = found
    if min(still.count, moving.count) < COUNT_MIN:
        return
    if moving.p99 > TIMES * still.p99 + SLACK_S:
        text = f"p99 {moving.p99 * 1000:.0f} ms while partitions move, {still.p99 * 1000:.0f} else"
        yield Anomaly("slow", text)
