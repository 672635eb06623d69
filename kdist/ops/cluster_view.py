"""Reads what the gate judges from ZooKeeper: brokers, controller, and every partition's state.

ZooKeeper is asked, not a broker, since a broker that is cut off has stale metadata. Topics that are
being deleted are left out: their partitions are meant to go offline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from kdist.client.cluster import Address
from kdist.errors import UserError
from kdist.model import NO_LEADER, TopicPartition, read_digits
from kdist.ops.gate import PartitionView, View
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.cluster_values import EntitySettings
from kdist.zk.election import current_controller
from kdist.zk.errors import NoNode

_MIN_ISR = "min.insync.replicas"


async def read_view(zookeeper: ZooKeeper, default_min_isr: int) -> View:
    """The cluster now. A topic's min.insync.replicas is its own, else the one in ZooKeeper for all
    brokers, else `default_min_isr`.
    """
    brokers = await _names(zookeeper, znodes.BROKERS.path())
    deletions = set(await _names(zookeeper, znodes.TOPIC_DELETIONS.path()))
    topics = [t for t in await _names(zookeeper, znodes.TOPICS.path()) if t not in deletions]
    controller = await current_controller(zookeeper)
    shared = await _settings(zookeeper, znodes.BROKER_SETTINGS.path(znodes.DEFAULT_ENTITY))
    min_isr = _min_isr(shared, default_min_isr)
    of_topics = await asyncio.gather(*(_topic(zookeeper, t, min_isr) for t in topics))
    return View(
        brokers=frozenset(int(name) for name in brokers),
        controller=None if controller is None else controller.broker_id,
        partitions=tuple(each for topic in of_topics for each in topic),
        is_reassigning=await zookeeper.exists(znodes.REASSIGNMENT.path()) is not None,
    )


async def broker_addresses(zookeeper: ZooKeeper, broker: int) -> Sequence[Address]:
    """The addresses of a registered broker; `UserError` if it is not registered."""
    path = znodes.BROKER.path(broker)
    try:
        znode = await zookeeper.get(path)
    except NoNode:
        raise UserError(f"broker {broker} is not registered") from None
    registration = znodes.BROKER.decode(path, znode.data)
    return [Address(each.host, each.port) for each in registration.plain]


async def _topic(zookeeper: ZooKeeper, topic: str, default_min_isr: int) -> list[PartitionView]:
    path = znodes.TOPIC.path(topic)
    try:
        assignment = znodes.TOPIC.decode(path, (await zookeeper.get(path)).data)
    except NoNode:
        return []  # deleted since it was listed
    own = await _settings(zookeeper, znodes.TOPIC_SETTINGS.path(topic))
    min_isr = _min_isr(own, default_min_isr)
    return await asyncio.gather(
        *(
            _partition(zookeeper, TopicPartition(topic, number), replicas, min_isr)
            for number, replicas in sorted(assignment.partitions.items())
        )
    )


async def _settings(zookeeper: ZooKeeper, path: str) -> Mapping[str, str]:
    try:
        znode = await zookeeper.get(path)
    except NoNode:
        return {}
    return EntitySettings.decode(path, znode.data).settings


def _min_isr(settings: Mapping[str, str], default: int) -> int:
    own = read_digits(settings.get(_MIN_ISR, ""))  # partition leaders read it the same way
    return default if own is None else own


async def _partition(
    zookeeper: ZooKeeper, partition: TopicPartition, replicas: Iterable[int], min_isr: int
) -> PartitionView:
    path = znodes.PARTITION_STATE.path(partition.topic, partition.partition)
    try:
        state = znodes.PARTITION_STATE.decode(path, (await zookeeper.get(path)).data)
    except NoNode:  # the controller has not got to it yet
        return PartitionView(partition, tuple(replicas), NO_LEADER, (), min_isr)
    return PartitionView(partition, tuple(replicas), state.leader, state.isr, min_isr)


async def _names(zookeeper: ZooKeeper, path: str) -> list[str]:
    try:
        return await zookeeper.children(path)
    except NoNode:
        return []  # no broker has joined this cluster yet
