"""The controller's picture of the cluster: what ZooKeeper holds, and nothing else.

A change enters here only after it was read from ZooKeeper or written there, so that whatever the
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
    """The picture no longer matches ZooKeeper: the reign has to end and a new one to load."""


class LiveBroker(NamedTuple):
    """A registered broker; `epoch` is the zxid that created its registration.

    `address` is where other brokers reach it.
    """

    id: int
    epoch: int
    registration: BrokerRegistration
    address: Listener

    @property
    def placed(self) -> Broker:
        """The broker as placement sees it: `host` is the machine, not an address."""
        machine = self.registration.host or self.address.host
        return Broker(self.id, machine, self.address.port, self.registration.rack)


class Topic(NamedTuple):
    """A topic with its assigned replicas. `zk_version` is its znode's.

    `adding` and `removing` are the replicas that a reassignment under way adds and removes.
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
        self.doomed: set[str] = set()  # topics that are being deleted
        self.unreadable: set[str] = set()  # topics whose znodes are corrupt
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
        """The partition's state, by the table in `states.py`."""
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
        """Take over leaders and ISRs that ZooKeeper now has."""
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
