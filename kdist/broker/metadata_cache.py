"""What this broker was told of the cluster: brokers alive, topics, leaders. It may be behind.

The controller tells it by UpdateMetadata; everybody here asks it, and nobody asks ZooKeeper. A
request of type FULL replaces all; another one adds, changes, and removes what is gone.

A topic that a FULL request does not name is not known here any more. But that it was deleted is
said, or shows when there is another of its name: somebody may have removed its znodes by mistake,
or written into them what makes no sense, and puts them back.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from typing import NamedTuple

from kdist.controller.cluster import LEADER_DURING_DELETION
from kdist.model import NO_LEADER, ZERO_UUID, Broker, TopicPartition, flat
from kdist.protocol.leader_and_isr import FULL
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
        self._absent: dict[str, KnownTopic] = {}  # not named any more, as they were
        self._names: dict[uuid.UUID, str] = {}
        self._flat: Counter[str] = Counter()  # names as `flat` has them; an old tool's may be twins

    def update(self, request: UpdateMetadataRequest) -> list[TopicPartition]:
        """Take what the controller says; the partitions that were deleted are returned."""
        if request.type == FULL:
            self._absent |= self.topics
            self.topics, self._names, self._flat = {}, {}, Counter()
        self.controller_id = request.controller_id
        self.brokers = {broker.id: broker for broker in request.live_brokers}
        gone: list[TopicPartition] = []
        for topic in request.topic_states:
            gone += self._update_topic(topic)
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
                self._absent.pop(name, None)
                if known is not None and known.id == told.topic_id:
                    known.partitions.pop(state.partition_index, None)
                continue
            if known is None or known.id != told.topic_id:
                gone += self._made_anew(name, told.topic_id)
                self._forget(name)
                known = self.topics[name] = KnownTopic(told.topic_id, {})
                self._names[told.topic_id] = name
                self._flat[flat(name)] += 1
            known.partitions[state.partition_index] = state
        if known is not None and not known.partitions:
            self._forget(name)
        return gone

    def _made_anew(self, name: str, topic_id: uuid.UUID) -> list[TopicPartition]:
        """The partitions of another topic that had the name, of whose end nobody told."""
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
