"""The controller's picture of the cluster: what ZooKeeper holds, and nothing else.

A change enters here only after it was read from ZooKeeper or written there, so that whatever
brokers are told is also what the next controller finds.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kdist.config.listeners import Listener
from kdist.controller.states import FOLLOWERS, NEW, NON_EXISTENT, OFFLINE, ONLINE, PartitionState
from kdist.errors import KdistError
from kdist.model import NO_LEADER, Broker, LeaderAndIsr, TopicPartition
from kdist.zk.registration import BrokerRegistration
from kdist.zk.topic_values import NOBODY, Replicas

LEADER_DURING_DELETION = -2
FIRST_ZK_VERSION = 0  # of a znode that was just created


class OutOfDate(KdistError):
    """What the picture shows is not so any more: a new reign has to look."""


class LiveBroker(NamedTuple):
    """A registered broker; `epoch` is the transaction that made its registration.

    `address` is where other brokers reach it.
    """

    id: int
    epoch: int
    registration: BrokerRegistration
    address: Listener

    @property
    def placed(self) -> Broker:
        """As placement sees it: by its failure domain, `host` being the machine."""
        machine = self.registration.host or self.address.host
        return Broker(self.id, machine, self.address.port, self.registration.rack)


class Topic(NamedTuple):
    """A topic with its assigned replicas. `zk_version` is its znode's.

    `adding` and `removing` are the replicas that a reassignment adds and removes, if one is on.
    """

    name: str
    id: uuid.UUID
    assignment: Replicas
    zk_version: int
    adding: Replicas = NOBODY
    removing: Replicas = NOBODY

    @property
    def partitions(self) -> list[TopicPartition]:
        """Its partitions, in order."""
        return [TopicPartition(self.name, index) for index in sorted(self.assignment)]


class Cluster:
    """Owned by the reign that loaded it; thrown away with it."""

    def __init__(self) -> None:
        self.brokers: dict[int, LiveBroker] = {}
        self.topics: dict[str, Topic] = {}
        self.doomed: set[str] = set()  # topics whose deletion was asked for and has not ended
        self.unreadable: set[str] = set()  # topics that are there, and make no sense
        self._states: dict[str, dict[int, LeaderAndIsr]] = {}

    @property
    def alive(self) -> frozenset[int]:
        """The ids of the registered brokers."""
        return frozenset(self.brokers)

    def replicas(self, partition: TopicPartition) -> tuple[int, ...]:
        """The assigned replicas; none if the partition is not assigned."""
        topic = self.topics.get(partition.topic)
        return topic.assignment.get(partition.partition, ()) if topic else ()

    def leader_and_isr(self, partition: TopicPartition) -> LeaderAndIsr | None:
        """Who leads and is in sync; None if the partition never had a leader."""
        return self._states.get(partition.topic, {}).get(partition.partition)

    def partition_state(self, partition: TopicPartition) -> PartitionState:
        """Where the partition is in the table of `states.py`."""
        if not self.replicas(partition):
            return NON_EXISTENT
        if partition.topic in self.doomed:
            return OFFLINE
        state = self.leader_and_isr(partition)
        if state is None:
            return NEW
        return OFFLINE if state.leader == NO_LEADER else ONLINE

    def living_topics(self) -> Iterator[Topic]:
        """The topics that are not being deleted."""
        return (topic for name, topic in self.topics.items() if name not in self.doomed)

    def partitions(self) -> Iterator[TopicPartition]:
        """The partitions of the topics that are not being deleted."""
        for topic in self.living_topics():
            yield from topic.partitions

    def put_states(self, states: Mapping[TopicPartition, LeaderAndIsr]) -> None:
        """Enter leaders and ISRs as they now are in ZooKeeper."""
        for partition, state in states.items():
            before = self.partition_state(partition)
            self._states.setdefault(partition.topic, {})[partition.partition] = state
            after = self.partition_state(partition)
            assert after in FOLLOWERS[before], f"{partition} went from {before} to {after}"

    def drop_topics(self, names: Iterable[str]) -> None:
        """Forget topics that ZooKeeper no longer has."""
        for name in names:
            self.topics.pop(name, None)
            self._states.pop(name, None)
            self.doomed.discard(name)
            self.unreadable.discard(name)
