"""What this broker was told of the cluster: brokers alive, topics, leaders. It may be behind.

The controller tells it by UpdateMetadata; everybody here asks it, and nobody asks ZooKeeper. A
request of type FULL replaces all; another one adds, changes, and removes what is gone.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Container
from typing import NamedTuple

from kdist.controller.cluster import LEADER_DURING_DELETION, NO_LEADER
from kdist.controller.requests import FULL
from kdist.model import ZERO_UUID, Broker, TopicPartition, flat
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
    """Owner: the broker. `told` is set from the first UpdateMetadata on."""

    def __init__(self) -> None:
        self.brokers: dict[int, LiveBroker] = {}
        self.topics: dict[str, KnownTopic] = {}
        self.controller_id = NO_CONTROLLER
        self.told = asyncio.Event()
        self._names: dict[uuid.UUID, str] = {}
        self._flat: Counter[str] = Counter()  # names as `flat` has them; an old tool's may be twins

    def update(self, request: UpdateMetadataRequest) -> list[TopicPartition]:
        """Take what the controller says; the partitions that are gone are returned.

        Not those of topics that it names without any: it cannot say what they have, for now.
        """
        before = self.topics
        if request.type == FULL:
            self.topics, self._names, self._flat = {}, {}, Counter()
        self.controller_id = request.controller_id
        self.brokers = {broker.id: broker for broker in request.live_brokers}
        gone: list[TopicPartition] = []
        for topic in request.topic_states:
            gone += self._update_topic(topic)
        if request.type == FULL:
            doubtful = {
                each.topic_name for each in request.topic_states if not each.partition_states
            }
            gone += _missing(before, self.topics, doubtful)
        self.told.set()
        return gone

    def forget_controller(self, broker_id: int) -> None:
        """This broker is not the controller any more; the next one will say that it is."""
        if self.controller_id == broker_id:
            self.controller_id = NO_CONTROLLER

    def _update_topic(self, told: UpdatedTopic) -> list[TopicPartition]:
        name, gone = told.topic_name, []
        known = self.topics.get(name)
        for state in told.partition_states:
            if state.leader == LEADER_DURING_DELETION:
                gone.append(TopicPartition(name, state.partition_index))
                if known is not None and known.id == told.topic_id:
                    known.partitions.pop(state.partition_index, None)
                continue
            if known is None or known.id != told.topic_id:
                self._forget(name)
                known = self.topics[name] = KnownTopic(told.topic_id, {})
                self._names[told.topic_id] = name
                self._flat[flat(name)] += 1
            known.partitions[state.partition_index] = state
        if known is not None and not known.partitions:
            self._forget(name)
        return gone

    def _forget(self, name: str) -> None:
        known = self.topics.pop(name, None)
        if known is not None:
            self._names.pop(known.id, None)
            left = self._flat.pop(flat(name)) - 1
            if left:
                self._flat[flat(name)] = left

    # What others ask

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """The name of the topic with this id."""
        return None if topic_id == ZERO_UUID else self._names.get(topic_id)

    def collides(self, name: str) -> bool:
        """Whether a name that no topic has is too much like one's: `a_b` beside `a.b`."""
        return flat(name) in self._flat

    def has(self, partition: TopicPartition) -> bool:
        """Whether the cluster has such a partition; it may have any before the first word of it.

        Who is told that a partition is not known may take it for deleted, and give up.
        """
        if not self.told.is_set():
            return True
        known = self.topics.get(partition.topic)
        return known is not None and partition.partition in known.partitions

    def leader_of(self, partition: TopicPartition) -> int:
        """The leader's broker id, -1 where there is none."""
        known = self.topics.get(partition.topic)
        state = known.partitions.get(partition.partition) if known else None
        return NO_LEADER if state is None else state.leader

    def broker(self, broker_id: int, listener: str) -> Broker | None:
        """Where a live broker is reached by those who use this listener."""
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


def _missing(
    before: dict[str, KnownTopic], after: dict[str, KnownTopic], doubtful: Container[str]
) -> list[TopicPartition]:
    """The partitions of topics that went, or were made anew, without our being told."""
    return [
        TopicPartition(name, index)
        for name, known in before.items()
        if name not in doubtful and (name not in after or after[name].id != known.id)
        for index in known.partitions
    ]
