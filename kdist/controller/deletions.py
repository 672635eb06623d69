"""Which replicas of topics queued for deletion have not been deleted yet.

A topic's znodes are removed only after its last replica, so that no replica is left behind on a
broker that was down: deletion waits until that broker is back. Clients do not see the topic in the
meantime. So a replica is in one of these states:

    state                what it is                          its broker is sent     leaves for
    NON_EXISTENT         not assigned, or all is deleted     nothing                NEW
    NEW                  its partition has no state yet      nothing                ONLINE, OFFLINE,
                                                                                    DELETION_*
    ONLINE               its broker is alive                 LeaderAndIsr, at each  OFFLINE,
                                                             change                 DELETION_*
    OFFLINE              its broker is gone, or about to     if about to stop:      ONLINE,
                         stop                                StopReplica once it    DELETION_*
                                                             is out of the ISR
    DELETION_STARTED     its topic is queued for deletion,   StopReplica, with      DELETION_*,
                         its broker alive                    deletion, until it is  NON_EXISTENT
                                                             answered
    DELETION_SUCCESSFUL  the broker has deleted it: waits    nothing                NON_EXISTENT
                         for the topic's others
    DELETION_INELIGIBLE  its topic is queued for deletion,   nothing, until it is   NON_EXISTENT,
                         its broker is gone                  back                   DELETION_STARTED

They follow from those of brokers, partitions and topics, so there is nothing to write or to forget:
a controller that takes over finds every replica in the state that it was in. Only what brokers have
deleted it asks again. Source: Apache Kafka's `ReplicaStateMachine`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kdist.controller.context import Topic
from kdist.model import TopicPartition


class Deletions:
    """Owned by the term."""

    def __init__(self) -> None:
        self._left: dict[str, dict[int, set[TopicPartition]]] = {}  # by topic, then broker
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}

    def begin(self, topic: Topic) -> None:
        """Expect all replicas of the topic to be deleted."""
        left = self._left[topic.name] = {}
        for partition in topic.partitions:
            assigned = topic.assigned(partition.partition)
            for replica in (*assigned.replicas, *assigned.removed):
                left.setdefault(replica, set()).add(partition)

    def left_on(self, broker_id: int) -> set[TopicPartition]:
        """The replicas that the broker has yet to delete."""
        return {each for left in self._left.values() for each in left.get(broker_id, ())}

    def count_left_without(self, alive: frozenset[int]) -> int:
        """How many replicas are left on other brokers than these."""
        return sum(
            len(partitions)
            for left in self._left.values()
            for broker_id, partitions in left.items()
            if broker_id not in alive
        )

    def complete_replicas(self, broker_id: int, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            left = self._left.get(partition.topic, {})
            left.get(broker_id, set()).discard(partition)
            if not left.get(broker_id, True):
                del left[broker_id]

    def complete(self) -> list[str]:
        """The topics that have no replica left, whose znodes may be removed."""
        return sorted(name for name, left in self._left.items() if not left)

    def end(self, name: str) -> None:
        """The topic's znodes are gone."""
        self._left.pop(name, None)
        self._release(name)

    def ended(self, name: str, alive: frozenset[int]) -> asyncio.Future[None]:
        """Done once the topic is gone, or only replicas on brokers that are down are left."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(name, []).append(waiter)
        self._maybe_release(name, alive)
        return waiter

    def release_blocked(self, alive: frozenset[int]) -> None:
        """Release the waiters of deletions that now wait only for brokers that are down."""
        for name in list(self._waiters):
            self._maybe_release(name, alive)

    def _maybe_release(self, name: str, alive: frozenset[int]) -> None:
        left = self._left.get(name)
        if left is None or (left and alive.isdisjoint(left)):
            self._release(name)

    def close(self) -> None:
        """Release all waiters: the next term continues the deletions."""
        for name in list(self._waiters):
            self._release(name)

    def _release(self, name: str) -> None:
        for waiter in self._waiters.pop(name, ()):
            if not waiter.done():
                waiter.set_result(None)
