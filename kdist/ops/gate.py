"""The gate of a rolling restart: whether brokers may go down, and whether they are back (pure).

It is asked for one broker, or for all of a host, which are judged as one: what each could do alone
they may not do together. A verdict is a list of reasons against; none means yes. Partitions with no
replica elsewhere inevitably go offline. They are listed separately, so that an operator has to
accept that explicitly. The gate judges a `View`, which `cluster_view.py` reads from ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from kdist.model import TopicPartition, counted

PROBE_PREFIX = "kdist-probe-"  # the probe's topics, which have a single replica on purpose


class PartitionView(NamedTuple):
    """A partition's state in ZooKeeper, and its topic's min.insync.replicas.

    `replicas` are those that are to be in sync, without those that a move adds.
    """

    partition: TopicPartition
    replicas: tuple[int, ...]
    leader: int
    isr: tuple[int, ...]
    min_isr: int
    is_moving: bool = False  # replicas are being added or removed


class View(NamedTuple):
    """A snapshot of a cluster: registered brokers, the controller if any, partitions.

    `is_reassigning`: an old tool's request for moves is there, which may not have begun yet.
    `mover` carries out a plan of moves; between two of them nothing may be moving.
    """

    brokers: frozenset[int]
    controller: int | None
    partitions: tuple[PartitionView, ...]
    is_reassigning: bool = False
    mover: str = ""


class Verdict(NamedTuple):
    """Reasons against, and the partitions with no replica elsewhere, which go offline.

    `moves` is that of the reasons which ends by itself, as partitions are being moved.
    """

    reasons: tuple[str, ...]
    single_replica: tuple[TopicPartition, ...]
    moves: str | None = None


def review_stop(
    view: View,
    brokers: Collection[int],
    expected: Collection[int],
    *,
    down: Collection[int] = (),
    allows_single_replica: bool = False,
) -> Verdict:
    """May `brokers` go down together now? They and the `expected` ones must be registered.

    Partitions that only brokers of `down` could lead do not count: they are known to be offline.
    """
    view = _without_lost(view, down)
    going = frozenset(brokers)
    mine = replicated_on(view, going)
    single = _only_on(mine, going)
    reasons = [*_unhealthy(view, {*expected, *going})]
    moves = _moves(view)
    reasons += [moves] if moves else []
    reasons += [
        f"{each.partition} would have {counted(left, 'in-sync replica')}, and asks for"
        f" {_needed(each)}"
        for each in mine
        if not going.issuperset(each.replicas)
        and (left := _left(view, each, going)) < _needed(each)
    ]
    if single and not allows_single_replica:
        reasons.append(f"{_count(single)} no replica elsewhere: {_some(single)}")
    return Verdict(tuple(reasons), single, moves)


def _moves(view: View) -> str | None:
    """That partitions are being moved, and by whom."""
    moving = [each.partition for each in view.partitions if each.is_moving]
    by = f", by {view.mover}" * bool(view.mover)
    if moving:
        verb = "partition is" if len(moving) == 1 else "partitions are"
        return f"{len(moving)} {verb} being reassigned{by}: {_some(moving)}"
    return f"partitions are being reassigned{by}" if view.is_reassigning or by else None


def review_return(view: View, brokers: Collection[int], expected: Collection[int]) -> Verdict:
    """Are `brokers` fully back, in the ISRs of all partitions that they have a replica of?

    With `expected`, the whole cluster has to be well. Without, a partition that only dead brokers
    could lead is not waited for: it has nothing to do with these.
    """
    if not expected:
        view = _without_lost(view, {each for p in view.partitions for each in p.isr})
    back = frozenset(brokers)
    mine = replicated_on(view, back)
    reasons = [*_unhealthy(view, {*expected, *back})]
    for broker in sorted(back):
        behind = [each.partition for each in _behind(mine, broker)]
        if behind:
            reasons.append(f"broker {broker} is not yet in the ISR of {_some(behind)}")
    return Verdict(tuple(reasons), _only_on(mine, back))


def find_behind(view: View, broker: int) -> list[PartitionView]:
    """The partitions that `broker` has a replica of, and is not in the ISR of."""
    return _behind(replicated_on(view, frozenset((broker,))), broker)


def _behind(partitions: Iterable[PartitionView], broker: int) -> list[PartitionView]:
    return [each for each in partitions if broker in each.replicas and broker not in each.isr]


def _without_lost(view: View, down: Collection[int]) -> View:
    """Without partitions whose whole ISR is down."""
    dead = frozenset(down) - view.brokers
    kept = (each for each in view.partitions if not each.isr or not dead.issuperset(each.isr))
    return view._replace(partitions=tuple(kept))


def _only_on(
    partitions: Iterable[PartitionView], brokers: frozenset[int]
) -> tuple[TopicPartition, ...]:
    """Those with no replica elsewhere."""
    return tuple(each.partition for each in partitions if brokers.issuperset(each.replicas))


def _left(view: View, each: PartitionView, going: frozenset[int]) -> int:
    """In-sync replicas without these. Dead brokers do not count, though still in the ISR."""
    return len((view.brokers & {*each.isr}) - going)


def _needed(each: PartitionView) -> int:
    """How many in-sync replicas must remain, so that acks=all goes on and somebody leads."""
    return max(1, min(each.min_isr, len(each.replicas)))


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


def replicated_on(view: View, brokers: frozenset[int]) -> list[PartitionView]:
    """The partitions that have a replica on one of these. Those of probes do not count."""
    return [
        each
        for each in view.partitions
        if not brokers.isdisjoint(each.replicas)
        and not each.partition.topic.startswith(PROBE_PREFIX)
    ]


def _count(partitions: Collection[TopicPartition]) -> str:
    return "1 partition has" if len(partitions) == 1 else f"{len(partitions)} partitions have"


def _some(partitions: Iterable[TopicPartition], most: int = 5) -> str:
    """The first few by name, and how many more."""
    names = [str(each) for each in sorted(partitions)]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
