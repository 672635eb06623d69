"""Reads the cluster from ZooKeeper, many znodes at a time.

A topic or registration whose bytes make no sense is logged and taken for missing: one bad znode,
which any tool may write, must not take the controller from all other topics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from kdist.config.kinds import INT32_MAX
from kdist.controller.cluster import LiveBroker, Topic
from kdist.model import ZERO_UUID, LeaderAndIsr, TopicPartition
from kdist.zk import znodes
from kdist.zk.client import Watch, Znode, ZooKeeper
from kdist.zk.errors import CorruptZnode, NoNode
from kdist.zk.topic_values import Replicas

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX = 500  # requests at a time: ZooKeeper's own limit for a server is 1,000

T = TypeVar("T")


class FoundState(NamedTuple):
    """A partition's state, and the transaction that wrote it."""

    partition: TopicPartition
    state: LeaderAndIsr
    mzxid: int


class Loader:
    """Reads for one reign. `listener` is the one that brokers use among themselves."""

    def __init__(self, zk: ZooKeeper, listener: str) -> None:
        self._zk = zk
        self._listener = listener

    async def brokers(self, watch: Watch) -> dict[int, LiveBroker]:
        """The registered brokers, whose coming and going is watched."""
        names = await self._zk.children(znodes.BROKERS.path(), watch)
        found = await gather(self._broker(name) for name in names)
        return {broker.id: broker for broker in found if broker is not None}

    async def topic_names(self, watch: Watch) -> list[str]:
        """The names of all topics, sorted and watched."""
        return await self._zk.children(znodes.TOPICS.path(), watch)

    async def doomed(self, watch: Watch) -> list[str]:
        """The topics whose deletion was asked for, sorted and watched."""
        return await self._zk.children(znodes.TOPIC_DELETIONS.path(), watch)

    async def topics(self, names: Iterable[str], watch: Callable[[str], Watch]) -> list[Topic]:
        """Those of the topics that exist, each watched by the `watch` for its name.

        The id of a topic that was written without one is zero.
        """
        found = await gather(self._topic(name, watch(name)) for name in names)
        return [topic for topic in found if topic is not None]

    async def states(self, topics: Iterable[Topic]) -> list[FoundState]:
        """The states of those partitions that have had a leader."""
        partitions = (each for topic in topics for each in topic.partitions)
        found: list[FoundState] = []
        while some := list(islice(partitions, IN_FLIGHT_MAX)):
            paths = [znodes.PARTITION_STATE.path(*each) for each in some]
            read = zip(some, paths, await self._zk.get_many(paths), strict=True)
            found += (_state(each, path, znode) for each, path, znode in read if znode is not None)
        return found

    async def _broker(self, name: str) -> LiveBroker | None:
        path = znodes.BROKER.path(name)
        try:
            data, stat = await self._zk.get(path)
            registration = znodes.BROKER.decode(path, data)
        except NoNode:
            return None  # gone since its name was read; the watch has fired
        except CorruptZnode as error:
            logger.error("a broker is ignored: %s", error)
            return None
        endpoint = registration.endpoint(self._listener)
        if endpoint is None or not name.isdecimal() or int(name) > INT32_MAX:
            logger.error("broker %s is ignored: no listener %s, or no id", name, self._listener)
            return None
        return LiveBroker(int(name), stat.czxid, registration, endpoint.listener)

    async def _topic(self, name: str, watch: Watch) -> Topic | None:
        path = znodes.TOPIC.path(name)
        try:
            data, stat = await self._zk.get(path, watch)
            found = znodes.TOPIC.decode(path, data)
            _check_range(path, found.partitions)
        except NoNode:
            return None
        except CorruptZnode as error:
            logger.error("a topic is ignored: %s", error)
            return None
        topic_id = found.topic_id or ZERO_UUID
        return Topic(name, topic_id, found.partitions, stat.version, found.adding, found.removing)


def _state(partition: TopicPartition, path: str, znode: Znode) -> FoundState:
    state = znodes.PARTITION_STATE.decode(path, znode.data)
    return FoundState(partition, state.with_version(znode.stat.version), znode.stat.mzxid)


def _check_range(path: str, replicas: Replicas) -> None:
    """Numbers that no request could carry make the znode corrupt."""
    numbers = {*replicas, *(each for assigned in replicas.values() for each in assigned)}
    if any(not 0 <= number <= INT32_MAX for number in numbers):
        raise CorruptZnode(path, "a partition or broker id is out of range")


async def gather(reads: Iterable[Coroutine[Any, Any, T]]) -> Sequence[T]:
    """The outcomes, in order; at most `IN_FLIGHT_MAX` are under way at once."""
    waiting, found = iter(reads), list[T]()
    while some := list(islice(waiting, IN_FLIGHT_MAX)):
        found += await asyncio.gather(*some)
    return found
