"""Reads what the gate judges from ZooKeeper: brokers, controller, and every partition's state.

ZooKeeper is asked, not a broker, since a broker that is cut off has stale metadata. Topics that are
being deleted are left out: their partitions are meant to go offline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

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
    shared = await znodes.BROKER_SETTINGS.read(zookeeper, znodes.DEFAULT_ENTITY)
    min_isr = _min_isr(shared, default_min_isr)
    of_topics = await asyncio.gather(*(_topic(zookeeper, t, min_isr) for t in topics))
    return View(
        brokers=frozenset(int(name) for name in brokers),
        controller=None if controller is None else controller.broker_id,
        partitions=tuple(each for topic in of_topics for each in topic),
        is_reassigning=await zookeeper.exists(znodes.REASSIGNMENT.path()) is not None,
    )


async def brokers_of_host(zookeeper: ZooKeeper, host: str) -> list[int]:
    """The registered brokers that say they are on that host; `UserError` if there are none."""
    ids = [int(name) for name in await _names(zookeeper, znodes.BROKERS.path())]
    found = await asyncio.gather(*(znodes.BROKER.read(zookeeper, each) for each in ids))
    hosts = {id_: each.host for id_, each in zip(ids, found, strict=True) if each is not None}
    mine = sorted(id_ for id_, each in hosts.items() if each == host)
    if not mine:
        known = ", ".join(sorted({each for each in hosts.values() if each is not None}))
        raise UserError(f"no broker is registered on host {host!r}: there are {known or 'none'}")
    return mine


async def broker_addresses(zookeeper: ZooKeeper, broker: int) -> Sequence[Address]:
    """The addresses of a registered broker; `UserError` if it is not registered."""
    registration = await znodes.BROKER.read(zookeeper, broker)
    if registration is None:
        raise UserError(f"broker {broker} is not registered")
    return [Address(each.host, each.port) for each in registration.plain]


async def _topic(zookeeper: ZooKeeper, topic: str, default_min_isr: int) -> list[PartitionView]:
    assignment = await znodes.TOPIC.read(zookeeper, topic)
    if assignment is None:
        return []  # deleted since it was listed
    min_isr = _min_isr(await znodes.TOPIC_SETTINGS.read(zookeeper, topic), default_min_isr)
    return await asyncio.gather(
        *(
            _partition(zookeeper, TopicPartition(topic, number), replicas, min_isr)
            for number, replicas in sorted(assignment.partitions.items())
        )
    )


def _min_isr(stored: EntitySettings | None, default: int) -> int:
    text = stored.settings.get(_MIN_ISR, "") if stored else ""
    own = read_digits(text)  # partition leaders read it the same way
    return default if own is None else own


async def _partition(
    zookeeper: ZooKeeper, partition: TopicPartition, replicas: Iterable[int], min_isr: int
) -> PartitionView:
    state = await znodes.PARTITION_STATE.read(zookeeper, *partition)
    if state is None:  # the controller has not got to it yet
        return PartitionView(partition, tuple(replicas), NO_LEADER, (), min_isr)
    return PartitionView(partition, tuple(replicas), state.leader, state.isr, min_isr)


async def _names(zookeeper: ZooKeeper, path: str) -> list[str]:
    try:
        return await zookeeper.children(path)
    except NoNode:
        return []  # no broker has joined this cluster yet
