"""The gate of a rolling restart: whether a broker may go down, and whether it is back (pure).

A verdict is a list of reasons against; none means yes. Partitions with a single replica inevitably
go offline with their broker. They are listed separately, so that an operator has to accept that
explicitly. The gate judges a `View`, which `cluster_view.py` reads from ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from kdist.model import TopicPartition

PROBE_PREFIX = "kdist-probe-"  # the probe's topics, which have a single replica on purpose


class PartitionView(NamedTuple):
    """A partition's state in ZooKeeper, and its topic's min.insync.replicas."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    leader: int
    isr: tuple[int, ...]
    min_isr: int


class View(NamedTuple):
    """A snapshot of a cluster: registered brokers, the controller if any, partitions."""

    brokers: frozenset[int]
    controller: int | None
    partitions: tuple[PartitionView, ...]
    is_reassigning: bool = False


class Verdict(NamedTuple):
    """Reasons against, and the single-replica partitions that go offline with the broker."""

    reasons: tuple[str, ...]
    single_replica: tuple[TopicPartition, ...]


def review_stop(
    view: View, broker: int, expected: Collection[int], *, allows_single_replica: bool = False
) -> Verdict:
    """May `broker` go down now? The brokers in `expected` must be registered, besides `broker`."""
    mine = _replicated_on(view, broker)
    single = tuple(each.partition for each in mine if len(each.replicas) == 1)
    reasons = [*_unhealthy(view, {*expected, broker})]
    if view.is_reassigning:
        reasons.append("partitions are being reassigned")
    reasons += [
        f"{each.partition} would have {left} in-sync replicas, and asks for {each.min_isr}"
        for each in mine
        if len(each.replicas) > 1 and (left := _left(view, each, broker)) < _needed(each)
    ]
    if single and not allows_single_replica:
        reasons.append(f"{_count(single)} no replica elsewhere: {_some(single)}")
    return Verdict(tuple(reasons), single)


def review_return(view: View, broker: int, expected: Collection[int]) -> Verdict:
    """Is `broker` fully back, in the ISR of every partition that it has a replica of?"""
    mine = _replicated_on(view, broker)
    behind = tuple(each.partition for each in mine if broker not in each.isr)
    reasons = [*_unhealthy(view, {*expected, broker})]
    if behind:
        reasons.append(f"broker {broker} is not yet in the ISR of {_some(behind)}")
    single = tuple(each.partition for each in mine if len(each.replicas) == 1)
    return Verdict(tuple(reasons), single)


def _left(view: View, each: PartitionView, broker: int) -> int:
    """In-sync replicas without `broker`. Dead brokers do not count, though still in the ISR."""
    return len(view.brokers & {*each.isr} - {broker})


def _needed(each: PartitionView) -> int:
    """How many in-sync replicas must remain: min.insync.replicas, and at least one to lead."""
    return max(1, each.min_isr)


def _unhealthy(view: View, expected: Collection[int]) -> Iterator[str]:
    missing = sorted(set(expected) - view.brokers)
    if missing:
        noun = "broker" if len(missing) == 1 else "brokers"
        yield f"{noun} {', '.join(map(str, missing))} not registered"
    if view.controller is None:
        yield "there is no controller"
    elif view.controller not in view.brokers:
        yield f"the controller, broker {view.controller}, is not registered"
    offline = tuple(each.partition for each in view.partitions if _is_offline(view, each))
    if offline:
        yield f"{_count(offline)} no leader: {_some(offline)}"


def _is_offline(view: View, each: PartitionView) -> bool:
    """Whether a partition has no live leader. A leftover topic of the probe does not count."""
    is_probe = each.partition.topic.startswith(PROBE_PREFIX)
    return each.leader not in view.brokers and not is_probe


def _replicated_on(view: View, broker: int) -> list[PartitionView]:
    return [
        each
        for each in view.partitions
        if broker in each.replicas and not each.partition.topic.startswith(PROBE_PREFIX)
    ]


def _count(partitions: Collection[TopicPartition]) -> str:
    return "1 partition has" if len(partitions) == 1 else f"{len(partitions)} partitions have"


def _some(partitions: Iterable[TopicPartition], most: int = 5) -> str:
    """The first few by name, and how many more."""
    names = [str(each) for each in sorted(partitions)]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
