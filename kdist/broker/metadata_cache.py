"""The cluster's metadata: live brokers, topics, leaders. It may be behind.

The controller keeps it up to date with UpdateMetadata; this broker's handlers read it instead of
ZooKeeper. A request of type FULL replaces everything; any other adds, changes and removes topics.

A topic that a FULL request does not name becomes unknown, but does not count as deleted: somebody
may have removed or corrupted its znodes by mistake, and may restore them. It counts as deleted when
the controller says so, or when a topic of the same name has another id.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from typing import NamedTuple

from kdist.controller.context import LEADER_DURING_DELETION
from kdist.model import NO_LEADER, ZERO_UUID, Broker, TopicPartition, flat
from kdist.protocol.leader_and_isr import FULL, INCREMENTAL
from kdist.protocol.update_metadata import (
    LiveBroker,
    UpdatedPartition,
    UpdatedTopic,
    UpdateMetadataRequest,
)

NO_CONTROLLER = -1


class KnownTopic(NamedTuple):
    """A topic's partitions by number."""

    id: uuid.UUID
    partitions: dict[int, UpdatedPartition]


class MetadataCache:
    """Owner: the broker. `loaded` is set once an UpdateMetadata had topics, not only brokers."""

    def __init__(self) -> None:
        self.brokers: dict[int, LiveBroker] = {}
        self.topics: dict[str, KnownTopic] = {}
        self.controller_id = NO_CONTROLLER
        self.loaded = asyncio.Event()
        self._absent: dict[str, KnownTopic] = {}  # left out by a FULL request; last known state
        self._names: dict[uuid.UUID, str] = {}
        self._flat: Counter[str] = (
            Counter()
        )  # by `flat` name; old tools could create colliding ones

    def update(self, request: UpdateMetadataRequest) -> list[TopicPartition]:
        """Apply the controller's update; return the partitions that were deleted."""
        if request.type == FULL:
            self._absent |= self.topics
            self.topics, self._names, self._flat = {}, {}, Counter()
        self.controller_id = request.controller_id
        self.brokers = {broker.id: broker for broker in request.live_brokers}
        gone: list[TopicPartition] = []
        for topic in request.topic_states:
            gone += self._update_topic(topic)
        if request.type != INCREMENTAL:  # which a kdist controller's first one is: brokers only
            self.loaded.set()
        return gone

    def forget_controller(self, broker_id: int) -> None:
        if self.controller_id == broker_id:
            self.controller_id = NO_CONTROLLER

    def is_fully_in_sync(self, partition: TopicPartition) -> bool:
        """Whether all replicas of a partition are in sync, as far as this broker was told."""
        topic = self.topics.get(partition.topic)
        state = None if topic is None else topic.partitions.get(partition.partition)
        return state is not None and set(state.replicas) <= set(state.isr)

    def _update_topic(self, topic: UpdatedTopic) -> list[TopicPartition]:
        name, gone = topic.topic_name, []
        known = self.topics.get(name)
        for state in topic.partition_states:
            if state.leader == LEADER_DURING_DELETION:
                gone.append(TopicPartition(name, state.partition_index))
                self._absent.pop(name, None)
                if known is not None and known.id == topic.topic_id:
                    known.partitions.pop(state.partition_index, None)
                continue
            if known is None or known.id != topic.topic_id:
                gone += self._made_anew(name, topic.topic_id)
                self._forget(name)
                known = self.topics[name] = KnownTopic(topic.topic_id, {})
                self._names[topic.topic_id] = name
                self._flat[flat(name)] += 1
            known.partitions[state.partition_index] = state
        if known is not None and not known.partitions:
            self._forget(name)
        return gone

    def _made_anew(self, name: str, topic_id: uuid.UUID) -> list[TopicPartition]:
        """The partitions of an earlier topic of this name whose deletion was never announced."""
        before = self.topics.get(name) or self._absent.pop(name, None)
        if before is None or before.id == topic_id:
            return []
        return [TopicPartition(name, index) for index in before.partitions]

    def _forget(self, name: str) -> None:
        known = self.topics.pop(name, None)
        if known is not None:
            self._names.pop(known.id, None)
            left = self._flat.pop(flat(name)) - 1
            if left:
                self._flat[flat(name)] = left

    # Look-ups

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        return None if topic_id == ZERO_UUID else self._names.get(topic_id)

    def collides(self, name: str) -> bool:
        """Whether a new topic's name collides with an existing one's, as `a_b` does with `a.b`."""
        return flat(name) in self._flat

    def has(self, partition: TopicPartition) -> bool:
        """Whether the cluster has the partition. True for any before the first UpdateMetadata:
        clients may take "unknown" for "deleted", and give up.
        """
        if not self.loaded.is_set():
            return True
        known = self.topics.get(partition.topic)
        return known is not None and partition.partition in known.partitions

    def leader_of(self, partition: TopicPartition) -> int:
        """The leader's broker id, -1 where there is none."""
        state = self.state_of(partition)
        return NO_LEADER if state is None else state.leader

    def state_of(self, partition: TopicPartition) -> UpdatedPartition | None:
        """What is known of the partition."""
        known = self.topics.get(partition.topic)
        return None if known is None else known.partitions.get(partition.partition)

    def has_shared_replica(self, broker_id: int) -> bool:
        """Whether the broker has a replica of a partition that others have replicas of."""
        return any(
            broker_id in state.replicas and len(state.replicas) > 1
            for topic in self.topics.values()
            for state in topic.partitions.values()
        )

    def broker(self, broker_id: int, listener: str) -> Broker | None:
        """The address of a live broker on this listener; None if it has none there."""
        live = self.brokers.get(broker_id)
        if live is None:
            return None
        for endpoint in live.endpoints:
            if endpoint.listener == listener:
                return Broker(live.id, endpoint.host, endpoint.port, live.rack)
        return None

    def brokers_on(self, listener: str) -> list[Broker]:
        """All live brokers that have this listener, by id."""
        found = (self.broker(broker_id, listener) for broker_id in sorted(self.brokers))
        return [broker for broker in found if broker is not None]
