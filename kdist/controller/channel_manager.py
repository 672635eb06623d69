"""The channels to all live brokers, and which broker is sent what."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from kdist.controller.channels import BrokerChannel, BrokerRequestBatch, ChannelContext
from kdist.controller.context import LiveBroker, Topic
from kdist.model import TopicPartition


class ControllerChannelManager:
    """Owned by the term. A broker without a channel is sent everything when it gets one."""

    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._channels: dict[int, BrokerChannel] = {}

    def add_broker(self, broker: LiveBroker) -> None:
        """A broker registered: send it everything."""
        self._channels[broker.id] = BrokerChannel(self._context, broker)

    def remove_broker(self, broker_id: int) -> None:
        """A broker's registration is gone: send it nothing more."""
        channel = self._channels.pop(broker_id, None)
        if channel is not None:
            channel.close()

    def update_all(self) -> None:
        """Send full requests to all, which replace what they were sent before."""
        self._add_to_all(BrokerRequestBatch(is_full=True))

    def update_brokers(self, has_new: bool) -> None:
        """The set of live brokers has changed; `has_new`: some have registered."""
        self._add_to_all(BrokerRequestBatch(has_brokers=True, has_new_brokers=has_new))

    def update_states(self, partitions: Collection[TopicPartition]) -> None:
        """Leaders and ISRs have changed: LeaderAndIsr to the replicas, UpdateMetadata to all."""
        replicas: dict[int, set[TopicPartition]] = {}
        for partition in partitions:
            for replica in self._context.cluster.replicas(partition):
                replicas.setdefault(replica, set()).add(partition)
        for broker_id, channel in self._channels.items():
            led = replicas.get(broker_id, set())
            channel.add(BrokerRequestBatch(leaders=led, metadata=set(partitions)))

    def update_metadata(self, partitions: Iterable[TopicPartition]) -> None:
        """What clients see of the partitions has changed."""
        self._add_to_all(BrokerRequestBatch(metadata=set(partitions)))

    def update_deleted_topic(self, topic: Topic) -> None:
        """The topic is being deleted: clients no longer see it."""
        self._add_to_all(BrokerRequestBatch(deleted=dict.fromkeys(topic.partitions, topic.id)))

    def stop(self, broker_id: int, partitions: Iterable[TopicPartition]) -> None:
        """Have the broker delete its replicas, if it is alive."""
        if broker_id in self._channels:
            self._channels[broker_id].add(BrokerRequestBatch(stops=set(partitions)))

    def acknowledged(self) -> list[asyncio.Future[None]]:
        """For each broker a future, done once it has acknowledged all that is pending now."""
        return [channel.acknowledged() for channel in self._channels.values()]

    def close(self) -> None:
        """Send nothing more to anyone."""
        for broker_id in list(self._channels):
            self.remove_broker(broker_id)

    def _add_to_all(self, batch: BrokerRequestBatch) -> None:
        for channel in self._channels.values():
            channel.add(batch)
