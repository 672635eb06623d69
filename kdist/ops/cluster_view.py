"""Reads what the gate judges from ZooKeeper: brokers, controller, and every partition's state.

ZooKeeper is asked, not a broker, since a broker that is cut off has stale metadata. Topics that are
being deleted are left out: their partitions are meant to go offline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from kdist.client.admin.asking import ask_brokers
from kdist.client.admin.client_settings import AdminSettings
from kdist.client.admin.disks import log_directories
from kdist.client.admin.health import PATIENCE_S
from kdist.client.admin.settings import describe_broker_configs
from kdist.client.cluster import Address, Cluster, cluster_at, parse_addresses
from kdist.client.zookeeper_session import read_addresses
from kdist.errors import ApiError, UserError
from kdist.model import NO_LEADER, TopicPartition, read_digits
from kdist.ops.gate import PartitionView, View
from kdist.ops.roll_lock import present_holder
from kdist.runtime.clock import Clock
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.election import current_controller
from kdist.zk.errors import NoNode
from kdist.zk.values import EntitySettings, PartitionState

_HINT = "give --command-config FILE, with the brokers' security.protocol"
_MIN_ISR = "min.insync.replicas"
_AT_A_TIME = 200  # znodes in a request


async def read_view(
    zookeeper: ZooKeeper, default_min_isr: int, clock: Clock, of: Collection[int] | None = None
) -> View:
    """The cluster now. A topic's min.insync.replicas is its own, else the one in ZooKeeper for all
    brokers, else `default_min_isr`.

    With `of`, only the partitions that have a replica on one of these brokers: each is a read.
    """
    brokers = await _names(zookeeper, znodes.BROKERS.path())
    deletions = set(await _names(zookeeper, znodes.TOPIC_DELETIONS.path()))
    topics = [t for t in await _names(zookeeper, znodes.TOPICS.path()) if t not in deletions]
    controller = await current_controller(zookeeper)
    shared = await znodes.BROKER_SETTINGS.read(zookeeper, znodes.DEFAULT_ENTITY)
    min_isr = _min_isr(shared, default_min_isr)
    of_topics = await asyncio.gather(*(_topic(zookeeper, t, min_isr, of) for t in topics))
    mover = await present_holder(zookeeper, clock, znodes.MOVES_LOCK)
    return View(
        brokers=frozenset(int(name) for name in brokers),
        controller=None if controller is None else controller.broker_id,
        partitions=tuple(each for topic in of_topics for each in topic),
        is_reassigning=await zookeeper.exists(znodes.REASSIGNMENT.path()) is not None,
        mover="" if mover is None else mover.holder,
    )


async def ask_min_isr(zookeeper: ZooKeeper, settings: AdminSettings) -> int:
    """The brokers' own min.insync.replicas, the largest that one of them has.

    `UserError` if none answers.
    """
    if not await _names(zookeeper, znodes.BROKERS.path()):
        return 1  # that there are no brokers is said otherwise
    addresses = await cluster_addresses(zookeeper, settings)
    with cluster_at(addresses, settings.connections, PATIENCE_S * 1000) as cluster:
        answers = await ask_brokers(
            cluster,
            lambda broker: describe_broker_configs(cluster, [broker]),
            patience_s=PATIENCE_S,
        )
    found = [
        int(settings[_MIN_ISR].value or 1)
        for said in answers.values()
        if not isinstance(said, ApiError)
        for settings in said.values()
        if _MIN_ISR in settings
    ]
    if not found:
        raise UserError("no broker says what its min.insync.replicas is: give --config FILE")
    return max(found)


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


async def cluster_addresses(zookeeper: ZooKeeper, settings: AdminSettings) -> Sequence[Address]:
    """The brokers' addresses as the settings have them, else as they are registered.

    `UserError` if no broker listens by their security protocol.
    """
    protocol = settings.security_protocol
    found = _given(settings) or await read_addresses(zookeeper, protocol)
    if not found:
        raise UserError(f"no broker has a listener for {protocol}: {_HINT}")
    return found


async def broker_addresses(
    zookeeper: ZooKeeper, broker: int, settings: AdminSettings
) -> Sequence[Address]:
    """The same of one broker; `UserError` also if it is not registered."""
    registration = await znodes.BROKER.read(zookeeper, broker)
    if registration is None:
        raise UserError(f"broker {broker} is not registered")
    protocol = settings.security_protocol
    listeners = registration.speaking(protocol)
    found = _given(settings) or [Address(each.host, each.port) for each in listeners]
    if not found:
        raise UserError(f"broker {broker} has no listener for {protocol}: {_HINT}")
    return found


def _given(settings: AdminSettings) -> Sequence[Address]:
    return (
        parse_addresses(",".join(settings.bootstrap_servers)) if settings.bootstrap_servers else ()
    )


async def lacking_bytes(
    cluster: Cluster, broker: int, behind: Sequence[PartitionView]
) -> int | None:
    """How many bytes larger the leaders' logs are than the broker's own; None if it does not say.

    Logs of leaders that do not say count as no larger.
    """
    await cluster.retried(cluster.metadata)
    asked = {broker, *(each.leader for each in behind)} & {*cluster.brokers}
    answers = await ask_brokers(
        cluster, lambda each: log_directories(cluster, each), asked, PATIENCE_S
    )
    sizes = {
        each: {one.partition: one.size_bytes for directory in told for one in directory.replicas}
        for each, told in answers.items()
        if not isinstance(told, ApiError)
    }
    if broker not in sizes:
        return None
    own, wanted = sizes[broker], {each.partition: sizes.get(each.leader, {}) for each in behind}
    return sum(max(0, of.get(each, 0) - own.get(each, 0)) for each, of in wanted.items())


async def _topic(
    zookeeper: ZooKeeper, topic: str, default_min_isr: int, of: Collection[int] | None
) -> list[PartitionView]:
    assignment = await znodes.TOPIC.read(zookeeper, topic)
    if assignment is None:
        return []  # deleted since it was listed
    min_isr = _min_isr(await znodes.TOPIC_SETTINGS.read(zookeeper, topic), default_min_isr)
    adding = assignment.adding
    replicas = {
        TopicPartition(topic, n): [each for each in ids if each not in adding.get(n, ())]
        for n, ids in sorted(assignment.partitions.items())
        if of is None or not {*of}.isdisjoint(ids)
    }
    states = await read_states(zookeeper, replicas)
    moving = {
        number
        for changes in (adding, assignment.removing)
        for number, ids in changes.items()
        if ids
    }
    return [
        _viewed(key, ids, states.get(key), min_isr)._replace(is_moving=key.partition in moving)
        for key, ids in replicas.items()
    ]


def _min_isr(stored: EntitySettings | None, default: int) -> int:
    text = stored.settings.get(_MIN_ISR, "") if stored else ""
    own = read_digits(text)  # partition leaders read it the same way
    return default if own is None else own


def _viewed(
    partition: TopicPartition, replicas: Iterable[int], state: PartitionState | None, min_isr: int
) -> PartitionView:
    if state is None:  # the controller has not got to it yet
        return PartitionView(partition, tuple(replicas), NO_LEADER, (), min_isr)
    return PartitionView(partition, tuple(replicas), state.leader, state.isr, min_isr)


async def read_states(
    zookeeper: ZooKeeper, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, PartitionState]:
    """The partitions' states; those left out that have none yet, or no more."""
    wanted = [(each, znodes.PARTITION_STATE.path(*each)) for each in partitions]
    chunks = [wanted[start : start + _AT_A_TIME] for start in range(0, len(wanted), _AT_A_TIME)]
    found = await asyncio.gather(
        *(zookeeper.get_many([path for _, path in chunk]) for chunk in chunks)
    )
    return {
        key: znodes.PARTITION_STATE.decode(path, znode.data)
        for chunk, got in zip(chunks, found, strict=True)
        for (key, path), znode in zip(chunk, got, strict=True)
        if znode is not None
    }


async def _names(zookeeper: ZooKeeper, path: str) -> list[str]:
    try:
        return await zookeeper.children(path)
    except NoNode:
        return []  # no broker has joined this cluster yet
