"""What the controller writes to ZooKeeper: always a multi that checks `/controller_epoch`.

A controller that was replaced gets `Fenced`; one whose picture is wrong gets `OutOfDate`. Nothing
was written then, or nothing of the last chunk: what is written in several chunks is so that any
first part of it is a state from which a controller can go on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import islice

from kdist.controller.cluster import FIRST_ZK_VERSION, OutOfDate, Topic
from kdist.controller.elections import Plan
from kdist.controller.loading import gather
from kdist.model import LeaderAndIsr, TopicPartition
from kdist.zk import znodes
from kdist.zk.client import Create, Delete, Operation, Set, ZooKeeper
from kdist.zk.cluster_values import EntitySettings
from kdist.zk.election import Leadership, fenced_multi
from kdist.zk.errors import MultiFailed, NoNode
from kdist.zk.topic_values import PartitionState, TopicAssignment

CHUNK = 500  # partitions or znodes in a multi, well below a megabyte


class Writer:
    """Writes for one reign."""

    def __init__(self, zk: ZooKeeper, leadership: Leadership) -> None:
        self._zk = zk
        self._epoch_zk_version = leadership.epoch_zk_version
        self.controller_epoch = leadership.epoch

    async def create_topic(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Topic and settings at once. Settings that were there without a topic are replaced."""
        settings = znodes.TOPIC_SETTINGS.path(topic.name)
        encoded = znodes.TOPIC_SETTINGS.encode(EntitySettings(configs))
        is_there = await self._zk.exists(settings) is not None
        await self._write(
            [
                Set(settings, encoded) if is_there else Create(settings, encoded),
                Create(znodes.TOPIC.path(topic.name), _encoded(topic)),
                Create(znodes.PARTITIONS.path(topic.name)),
            ]
        )

    async def write_topic(self, topic: Topic) -> Topic:
        """Write the assignment and id of a topic that exists; the topic as it is then."""
        await self._write([Set(znodes.TOPIC.path(topic.name), _encoded(topic), topic.zk_version)])
        return topic._replace(zk_version=topic.zk_version + 1)

    async def write_states(self, plan: Plan) -> AsyncIterator[Plan]:
        """Write the states of the plan in chunks; yields each chunk once it is written."""
        parents = await self._parents({each.topic for each in _created(plan)})
        waiting = iter(sorted(plan.items()))
        while chunk := dict(islice(waiting, CHUNK)):
            operations: list[Operation] = []
            for partition, state in chunk.items():
                operations += _state_operations(partition, state, parents)
            await self._write(operations)
            yield chunk

    async def request_deletion(self, name: str) -> None:
        """From now on whoever is controller deletes the topic."""
        await self._write([Create(znodes.TOPIC_DELETION.path(name))])

    async def withdraw_deletion(self, name: str) -> None:
        """The topic is not to be deleted."""
        await self._write([Delete(znodes.TOPIC_DELETION.path(name))])

    async def remove_topic(self, name: str) -> None:
        """Remove all znodes of a topic: partitions first; topic, settings and request at once."""
        root = znodes.TOPIC.path(name)
        *below, topic = [Delete(path) for path in await self._tree(root)]
        while len(below) > CHUNK:
            await self._write(below[:CHUNK])
            del below[:CHUNK]
        settings = znodes.TOPIC_SETTINGS.path(name)
        rest = [Delete(settings)] if await self._zk.exists(settings) is not None else []
        await self._write([*below, topic, *rest, Delete(znodes.TOPIC_DELETION.path(name))])

    async def _parents(self, topics: Iterable[str]) -> set[str]:
        """Which parents of states exist: another controller may have died amid creating them."""
        found: set[str] = set()
        for name in sorted(topics):
            path = znodes.PARTITIONS.path(name)
            try:
                children = await self._zk.children(path)
            except NoNode:
                continue
            found |= {path, *(f"{path}/{child}" for child in children)}
        return found

    async def _tree(self, root: str) -> list[str]:
        """The paths of a subtree, children before their parents."""
        found: list[str] = []
        level = [root]
        while level:
            found += level
            names = await gather(self._zk.children(path) for path in level)
            level = [f"{p}/{name}" for p, each in zip(level, names, strict=True) for name in each]
        return found[::-1]

    async def _write(self, operations: Sequence[Operation]) -> None:
        try:
            await fenced_multi(self._zk, self._epoch_zk_version, operations)
        except MultiFailed as failure:
            raise OutOfDate(f"ZooKeeper is not as expected: {failure}") from failure


def _created(plan: Plan) -> Iterable[TopicPartition]:
    return (each for each, state in plan.items() if state.zk_version == FIRST_ZK_VERSION)


def _state_operations(
    partition: TopicPartition, state: LeaderAndIsr, parents: set[str]
) -> list[Operation]:
    """To write a state over the one before; to create it, with the parents it lacks."""
    path = znodes.PARTITION_STATE.path(*partition)
    value = PartitionState(state.leader, state.leader_epoch, state.isr, state.controller_epoch)
    encoded = znodes.PARTITION_STATE.encode(value)
    if state.zk_version != FIRST_ZK_VERSION:
        return [Set(path, encoded, state.zk_version - 1)]
    above = (znodes.PARTITIONS.path(partition.topic), znodes.PARTITION.path(*partition))
    missing = [parent for parent in above if parent not in parents]
    parents.update(missing)
    return [*(Create(parent) for parent in missing), Create(path, encoded)]


def _encoded(topic: Topic) -> bytes:
    return znodes.TOPIC.encode(
        TopicAssignment(topic.assignment, topic.id, topic.adding, topic.removing)
    )
