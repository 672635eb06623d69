"""The channels to all live brokers, and which broker is told what."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from kdist.controller.channels import Channel, ChannelContext
from kdist.controller.cluster import LiveBroker, Topic
from kdist.controller.pending import Pending
from kdist.model import TopicPartition


class Switchboard:
    """Owned by the reign. A broker without a channel is told everything when it gets one."""

    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._channels: dict[int, Channel] = {}

    def add_broker(self, broker: LiveBroker) -> None:
        """A broker registered: tell it everything."""
        self._channels[broker.id] = Channel(self._context, broker)

    def remove_broker(self, broker_id: int) -> None:
        """A broker's registration is gone: send it nothing more."""
        channel = self._channels.pop(broker_id, None)
        if channel is not None:
            channel.close()

    def tell_everything(self) -> None:
        """Send full requests to all, which replace what they were told before."""
        self._tell_all(Pending(is_full=True))

    def tell_brokers(self) -> None:
        """The set of live brokers has changed."""
        self._tell_all(Pending(has_brokers=True))

    def tell_states(self, partitions: Collection[TopicPartition]) -> None:
        """Leaders and ISRs have changed: LeaderAndIsr to the replicas, UpdateMetadata to all."""
        replicas: dict[int, set[TopicPartition]] = {}
        for partition in partitions:
            for replica in self._context.cluster.replicas(partition):
                replicas.setdefault(replica, set()).add(partition)
        for broker_id, channel in self._channels.items():
            led = replicas.get(broker_id, set())
            channel.tell(Pending(leaders=led, metadata=set(partitions)))

    def tell_metadata(self, partitions: Iterable[TopicPartition]) -> None:
        """What clients see of the partitions has changed."""
        self._tell_all(Pending(metadata=set(partitions)))

    def tell_gone(self, topic: Topic) -> None:
        """The topic is being deleted: clients no longer see it."""
        self._tell_all(Pending(gone=dict.fromkeys(topic.partitions, topic.id)))

    def stop(self, broker_id: int, partitions: Iterable[TopicPartition]) -> None:
        """Have the broker delete its replicas, if it is alive."""
        if broker_id in self._channels:
            self._channels[broker_id].tell(Pending(stops=set(partitions)))

    def told(self) -> list[asyncio.Future[None]]:
        """For each broker a future, done once it has acknowledged all that is pending now."""
        return [channel.told() for channel in self._channels.values()]

    def close(self) -> None:
        """Send nothing more to anyone."""
        for broker_id in list(self._channels):
            self.remove_broker(broker_id)

    def _tell_all(self, news: Pending) -> None:
        for channel in self._channels.values():
            channel.tell(news)
