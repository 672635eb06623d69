"""Reads the cluster from ZooKeeper, many znodes at a time.

A broker whose registration is corrupt is logged and treated as missing, and so is a topic if its
znode or the state of one of its partitions is corrupt: one bad znode, which any tool may write,
must not leave all other topics without a controller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from kdist.config.kinds import INT32_MAX
from kdist.controller.context import UNKNOWN_DISK, LiveBroker, Topic
from kdist.model import ZERO_UUID, LeaderAndIsr, TopicPartition
from kdist.zk import znodes
from kdist.zk.client import IN_FLIGHT_MAX, Watch, Znode, ZooKeeper, gather
from kdist.zk.errors import CorruptZnode, NoNode
from kdist.zk.values import PreferredElection, Reassignment, VettedDisk
from kdist.zk.znodes import ZnodeRow

logger = logging.getLogger(__name__)

_ID_DIGITS_MAX = len(str(INT32_MAX))

T = TypeVar("T")


class FoundState(NamedTuple):
    """A partition's state, and the zxid of the transaction that wrote it."""

    partition: TopicPartition
    state: LeaderAndIsr
    mzxid: int


class Loader:
    """Reads for one term. `listener` names the inter-broker listener."""

    def __init__(self, zk: ZooKeeper, listener: str) -> None:
        self._zk = zk
        self._listener = listener

    async def brokers(self, watch: Watch) -> dict[int, LiveBroker]:
        """The registered brokers; watches the list, not each registration."""
        names = await self._zk.children(znodes.BROKERS.path(), watch)
        found = await gather(self._broker(name) for name in names)
        return {broker.id: broker for broker in found if broker is not None}

    async def vetted_disks(self) -> dict[int, VettedDisk]:
        """The disks by which brokers' replicas were last judged.

        Where that cannot be read the broker may be on any disk: so it is taken to be on another.
        """
        try:
            names = await self._zk.children(znodes.VETTED_DISKS.path())
        except NoNode:
            return {}
        paths = [znodes.VETTED_DISK.path(name) for name in names]
        found: dict[int, VettedDisk] = {}
        for name, path, znode in zip(names, paths, await self._zk.get_many(paths), strict=True):
            if znode is None or not _is_id(name):
                continue
            try:
                found[int(name)] = znodes.VETTED_DISK.decode(path, znode.data)
            except CorruptZnode as error:
                logger.error("broker %s may have lost everything: %s", name, error)
                found[int(name)] = UNKNOWN_DISK
        return found

    async def preferred_election(self, watch: Watch) -> PreferredElection | None:
        """What an old tool wants led by preferred replicas; None if it asks for nothing."""
        return await self._request(znodes.PREFERRED_ELECTION, watch, PreferredElection(()))

    async def reassignment(self, watch: Watch) -> Reassignment | None:
        """What an old tool wants to be moved, and where to; None if it asks for nothing."""
        return await self._request(znodes.REASSIGNMENT, watch, Reassignment({}))

    async def _request(self, row: ZnodeRow[T], watch: Watch, empty: T) -> T | None:
        """Watches the request. One that is corrupt asks for no partitions: it is `empty`."""
        if await self._zk.exists(row.path(), watch) is None:
            return None
        try:
            return await row.read(self._zk)
        except CorruptZnode as error:
            logger.error("a request is ignored: %s", error)
            return empty

    async def topic_names(self, watch: Watch) -> list[str]:
        """The names of all topics, sorted; watches the list."""
        return await self._zk.children(znodes.TOPICS.path(), watch)

    async def deletion_requests(self, watch: Watch) -> list[str]:
        """The topics whose deletion was asked for, sorted; watches the list."""
        return await self._zk.children(znodes.TOPIC_DELETIONS.path(), watch)

    async def topics(
        self, names: Iterable[str], watch: Callable[[str], Watch]
    ) -> tuple[list[Topic], set[str]]:
        """The topics that exist, and the names of those whose znodes are corrupt.

        Each is watched by `watch(name)`. A topic that was written without an id gets `ZERO_UUID`.
        """
        unreadable: set[str] = set()
        found = await gather(self._topic(name, watch(name), unreadable) for name in names)
        return [topic for topic in found if topic is not None], unreadable

    async def states(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[list[FoundState], set[str]]:
        """The states of partitions that have one, and the names of topics with a corrupt one."""
        partitions = iter(partitions)
        found: list[FoundState] = []
        unreadable: set[str] = set()
        while some := list(islice(partitions, IN_FLIGHT_MAX)):
            paths = [znodes.PARTITION_STATE.path(*each) for each in some]
            for each, path, znode in zip(some, paths, await self._zk.get_many(paths), strict=True):
                if znode is None or each.topic in unreadable:
                    continue
                try:
                    found.append(_state(each, path, znode))
                except CorruptZnode as error:
                    logger.error("a topic is ignored: %s", error)
                    unreadable.add(each.topic)
        return [each for each in found if each.partition.topic not in unreadable], unreadable

    async def existing_topics(self, names: Iterable[str]) -> set[str]:
        """Those of the topics that have a znode."""
        return await existing(self._zk, znodes.TOPIC, names)

    async def _broker(self, name: str) -> LiveBroker | None:
        path = znodes.BROKER.path(name)
        try:
            data, stat = await self._zk.get(path)
            registration = znodes.BROKER.decode(path, data)
        except NoNode:
            return None  # deleted since its name was read; the watch on the list has fired
        except CorruptZnode as error:
            logger.error("a broker is ignored: %s", error)
            return None
        endpoint = registration.endpoint(self._listener)
        if endpoint is None or not _is_id(name):
            logger.error(
                "broker %s is ignored: no listener %s, or not a broker id", name, self._listener
            )
            return None
        return LiveBroker(int(name), stat.czxid, registration, endpoint.listener)

    async def _topic(self, name: str, watch: Watch, unreadable: set[str]) -> Topic | None:
        path = znodes.TOPIC.path(name)
        try:
            data, stat = await self._zk.get(path, watch)
            found = znodes.TOPIC.decode(path, data)
            for replicas in (found.partitions, *found[2:]):
                _check_range(path, 0, (*replicas, *chain.from_iterable(replicas.values())))
        except NoNode:
            return None
        except CorruptZnode as error:
            logger.error("a topic is ignored: %s", error)
            unreadable.add(name)
            return None
        topic_id = found.topic_id or ZERO_UUID
        return Topic(name, topic_id, found.partitions, stat.version, *found[2:])


def _state(partition: TopicPartition, path: str, znode: Znode) -> FoundState:
    state = znodes.PARTITION_STATE.decode(path, znode.data)
    _check_range(path, -1, (state.leader, state.leader_epoch, state.controller_epoch, *state.isr))
    return FoundState(partition, state.with_version(znode.stat.version), znode.stat.mzxid)


def _is_id(name: str) -> bool:
    """Whether the name can be a broker id."""
    return name.isdecimal() and len(name) <= _ID_DIGITS_MAX and int(name) <= INT32_MAX


def _check_range(path: str, lowest: int, numbers: Iterable[int]) -> None:
    """`CorruptZnode` if a number does not fit a request's field."""
    if any(not lowest <= number <= INT32_MAX for number in numbers):
        raise CorruptZnode(path, "a number in it is out of range")


async def existing(zk: ZooKeeper, row: ZnodeRow[Any], names: Iterable[str]) -> set[str]:
    """Those of the names that have a znode of this row."""
    asked = list(names)
    stats = await gather(zk.exists(row.path(name)) for name in asked)
    return {name for name, stat in zip(asked, stats, strict=True) if stat is not None}
