"""The channels to all brokers alive: who is told what."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from kdist.controller.channels import Channel, Desk
from kdist.controller.cluster import LiveBroker, Topic
from kdist.controller.pending import Pending
from kdist.model import TopicPartition


class Switchboard:
    """Owned by the reign. A broker without a channel will be told all when it gets one."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._channels: dict[int, Channel] = {}

    def meet(self, broker: LiveBroker) -> None:
        """A broker registered: tell it all."""
        self._channels[broker.id] = Channel(self._desk, broker)

    def part(self, broker_id: int) -> None:
        """A registration is gone: nothing more is sent to it."""
        channel = self._channels.pop(broker_id, None)
        if channel is not None:
            channel.close()

    def tell_anew(self) -> None:
        """Everybody is to know what there is, and nothing else."""
        self._tell_all(Pending(is_full=True))

    def tell_brokers(self) -> None:
        """The brokers alive are others."""
        self._tell_all(Pending(has_brokers=True))

    def tell_states(self, partitions: Collection[TopicPartition]) -> None:
        """Leaders and ISRs have changed: their replicas hear it, then everybody."""
        replicas: dict[int, set[TopicPartition]] = {}
        for partition in partitions:
            for replica in self._desk.cluster.replicas(partition):
                replicas.setdefault(replica, set()).add(partition)
        for broker_id, channel in self._channels.items():
            led = replicas.get(broker_id, set())
            channel.tell(Pending(leaders=led, metadata=set(partitions)))

    def tell_metadata(self, partitions: Iterable[TopicPartition]) -> None:
        """What clients see of the partitions has changed."""
        self._tell_all(Pending(metadata=set(partitions)))

    def tell_gone(self, topic: Topic) -> None:
        """Clients are not to see the topic any more."""
        self._tell_all(Pending(gone=dict.fromkeys(topic.partitions, topic.id)))

    def stop(self, broker_id: int, partitions: Iterable[TopicPartition]) -> None:
        """Have the broker delete its replicas, if it is alive."""
        if broker_id in self._channels:
            self._channels[broker_id].tell(Pending(stops=set(partitions)))

    def told(self) -> list[asyncio.Future[None]]:
        """For each broker: done when it has answered for all that it is to be told now."""
        return [channel.told() for channel in self._channels.values()]

    def close(self) -> None:
        """Nothing more is sent to anybody."""
        for broker_id in list(self._channels):
            self.part(broker_id)

    def _tell_all(self, news: Pending) -> None:
        for channel in self._channels.values():
            channel.tell(news)
