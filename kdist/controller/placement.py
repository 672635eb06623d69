"""Which brokers get the replicas of new partitions (pure).

Brokers are put in a list that alternates racks, within a rack hosts, and within a host its brokers
(one per disk). The first replica of partition i is on broker (start + i) mod n, so that leaders
spread evenly. Further replicas go to the next brokers of the list, at a shift that grows by one
each time round the list, so that the followers of one broker's partitions spread too. A host never
gets two replicas of a partition, and a rack gets a second one only when every rack has one. Source:
Kafka's `AdminUtils`, KIP-36; design D1 for hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import TypeVar

from kdist.errors import ApiError, Error
from kdist.model import Broker, counted

T = TypeVar("T")

Assignment = dict[int, tuple[int, ...]]
"""The assigned replicas of each partition, preferred leader first."""


def interleave(brokers: Iterable[Broker]) -> list[Broker]:
    """The list that `place` walks; it does not depend on the order of `brokers`."""
    by_rack = _group(sorted(brokers, key=lambda broker: broker.id), lambda b: b.rack or "")
    return _take_turns(_take_turns(_group(rack, lambda b: b.host)) for rack in by_rack)


def place(
    order: Sequence[Broker],
    partitions: range,
    replication_factor: int,
    start: int,
) -> Assignment:
    """Assign `partitions` to the brokers of `order`, which `interleave` made.

    `start` is the index of partition 0's first broker, also when only later partitions are added,
    and the initial shift. ApiError INVALID_REPLICATION_FACTOR if there are fewer hosts than
    replicas.
    """
    hosts = len({broker.host for broker in order})
    if not 1 <= replication_factor <= hosts:
        raise ApiError(
            Error.INVALID_REPLICATION_FACTOR,
            f"a replication factor of {replication_factor} with {counted(hosts, 'host')} alive;"
            " a host holds at most one replica of a partition",
        )
    return {
        index: _replicas(order, start + index, start + index // len(order), replication_factor)
        for index in partitions
    }


def start_of(order: Sequence[Broker], assignment: Mapping[int, Sequence[int]]) -> int:
    """The `start` for adding partitions to a topic; 0 if its first broker is gone."""
    first = assignment[0][0] if 0 in assignment else None
    return next((at for at, broker in enumerate(order) if broker.id == first), 0)


def check_explicit(
    assignment: Mapping[int, Sequence[int]], first: int, brokers: Mapping[int, Broker]
) -> Assignment:
    """Validate an assignment given in a request for partitions from `first` on.

    ApiError INVALID_REPLICA_ASSIGNMENT if it is not valid.
    """
    if sorted(assignment) != list(range(first, first + len(assignment))):
        raise _invalid(f"the partitions are not numbered from {first} without a gap")
    if len({len(replicas) for replicas in assignment.values()}) > 1:
        raise _invalid("the partitions differ in their number of replicas")
    for index, replicas in sorted(assignment.items()):
        _check_replicas(index, replicas, brokers)
    return {index: tuple(assignment[index]) for index in sorted(assignment)}


def _check_replicas(index: int, replicas: Sequence[int], brokers: Mapping[int, Broker]) -> None:
    if not replicas:
        raise _invalid(f"partition {index} has no replicas")
    if len(set(replicas)) < len(replicas):
        raise _invalid(f"partition {index} names a broker twice")
    unknown = [replica for replica in replicas if replica not in brokers]
    if unknown:
        raise _invalid(f"partition {index} names broker {unknown[0]}, which is not alive")
    if len({brokers[replica].host for replica in replicas}) < len(replicas):
        raise _invalid(f"partition {index} has two replicas on one host")


def _replicas(
    order: Sequence[Broker], index: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    first, others = index % len(order), len(order) - 1
    turned = (order[(first + 1 + (shift + k) % others) % len(order)] for k in range(others))
    chosen = [order[first]]
    candidates = list(turned) if replication_factor > 1 else []
    while len(chosen) < replication_factor:
        hosts = {broker.host for broker in chosen}
        racks = Counter(broker.rack for broker in chosen)
        free = (broker for broker in candidates if broker.host not in hosts)
        chosen.append(min(free, key=lambda broker: racks[broker.rack]))  # ties: first in the list
    return tuple(broker.id for broker in chosen)


def _group(items: Iterable[T], key: Callable[[T], str]) -> list[list[T]]:
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [groups[name] for name in sorted(groups)]


def _take_turns(rows: Iterable[Sequence[T]]) -> list[T]:
    return [item for item in chain.from_iterable(zip_longest(*rows)) if item is not None]


def _invalid(detail: str) -> ApiError:
    return ApiError(Error.INVALID_REPLICA_ASSIGNMENT, detail)
