"""What the controller context adds up to, and which partitions concern a broker.

Counted and indexed as the context changes: with 200,000 partitions a scrape, or an event of one
broker, must not go through all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kdist.model import NO_LEADER, LeaderAndIsr, TopicPartition

Index = dict[int, dict[TopicPartition, None]]
"""Partitions by broker; in dicts, as a set would have no order that a seed repeats."""


class Counted(NamedTuple):
    """A partition of a topic that is not being deleted, as the context has it."""

    partition: TopicPartition
    state: LeaderAndIsr | None
    replicas: tuple[int, ...]
    is_moving: bool
    removed: tuple[int, ...]


class Tally:
    """Owned by the `ControllerContext`."""

    def __init__(self) -> None:
        self.partitions = 0
        self.recovering = 0
        self.offline: dict[TopicPartition, None] = {}  # without a leader
        self.imbalanced: dict[TopicPartition, None] = {}  # not led by the preferred replica
        self.moving: dict[TopicPartition, None] = {}
        self.preferred: dict[int, int] = {}  # how many partitions a broker should lead
        self.removed: Index = {}  # whose logs the broker has yet to delete
        self._concerned: Index = {}
        self._replicas: dict[int, int] = {}  # how many of partitions that have a state

    def add(self, each: Counted) -> None:
        self._count(each, 1)
        for broker_id in _concerned(each):
            self._concerned.setdefault(broker_id, {})[each.partition] = None
        for broker_id in each.removed:
            self.removed.setdefault(broker_id, {})[each.partition] = None
        if each.is_moving:
            self.moving[each.partition] = None

    def remove(self, each: Counted) -> None:
        """Take back an `add` of exactly this."""
        self._count(each, -1)
        for broker_id in _concerned(each):
            _drop(self._concerned, broker_id, each.partition)
        for broker_id in each.removed:
            _drop(self.removed, broker_id, each.partition)
        self.moving.pop(each.partition, None)

    def change_state(self, before: Counted, state: LeaderAndIsr) -> None:
        """As `remove` and `add` with another state, of which mostly little is another."""
        after = before._replace(state=state)
        if before.state is None or _concerned(before) != _concerned(after):
            self.remove(before)
            self.add(after)
        else:
            self.recovering += state.is_recovering - before.state.is_recovering
            self._note_leader(after)

    def concerning(self, broker_ids: Iterable[int]) -> dict[TopicPartition, None]:
        """Partitions that have one of these as replica, leader, ISR member or likewise."""
        found: dict[TopicPartition, None] = {}
        for broker_id in sorted(broker_ids):
            found |= self._concerned.get(broker_id, {})
        return found

    def replicas_by_broker(self) -> dict[int, int]:
        """How many replicas each broker has, of partitions that have a state."""
        return self._replicas

    def _count(self, each: Counted, sign: int) -> None:
        self.partitions += sign
        _add(self.preferred, each.replicas[0], sign)
        if each.state is not None:
            self.recovering += sign * each.state.is_recovering
            for broker_id in each.replicas:
                _add(self._replicas, broker_id, sign)
        self._note_leader(each)
        if sign < 0:
            self.offline.pop(each.partition, None)
            self.imbalanced.pop(each.partition, None)

    def _note_leader(self, each: Counted) -> None:
        leader = NO_LEADER if each.state is None else each.state.leader
        if leader == NO_LEADER:
            self.offline[each.partition] = None
        else:
            self.offline.pop(each.partition, None)
        if each.state is not None and leader != each.replicas[0]:
            self.imbalanced[each.partition] = None
        else:
            self.imbalanced.pop(each.partition, None)


def _concerned(each: Counted) -> Iterable[int]:
    state, replicas = each.state, each.replicas
    if state is None:
        return replicas
    if not (state.eligible or state.emptied or state.lossy) and set(state.isr) <= set(replicas):
        return replicas  # as nearly always; and the leader is in the ISR
    others = (*state.isr, state.leader, *state.eligible, *state.emptied, *state.lossy)
    return dict.fromkeys((*replicas, *others))


def _drop(index: Index, broker_id: int, partition: TopicPartition) -> None:
    """Also where a znode names the broker twice."""
    of_broker = index.get(broker_id, {})
    of_broker.pop(partition, None)
    if not of_broker:
        index.pop(broker_id, None)


def _add(counts: dict[int, int], broker_id: int, number: int) -> None:
    counts[broker_id] = counts.get(broker_id, 0) + number
    if not counts[broker_id]:
        del counts[broker_id]
