"""What the controller writes to ZooKeeper: always a multi that checks `/controller_epoch`.

A controller that was replaced gets `Fenced`; one whose picture is wrong gets `OutOfDate`. Nothing
was written then, or nothing of the last chunk: what is written in several chunks is so that any
first part of it is a state from which a controller can go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Iterable,
    Iterator,
    Sequence,
)
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from kdist.controller.cluster import FIRST_ZK_VERSION, OutOfDate, Topic
from kdist.controller.elections import Plan
from kdist.controller.loading import gather
from kdist.controller.topics import Planned
from kdist.model import LeaderAndIsr, TopicPartition
from kdist.zk import znodes
from kdist.zk.client import Create, Delete, Operation, Set, ZooKeeper
from kdist.zk.cluster_values import EntitySettings
from kdist.zk.election import Leadership, fenced_multi
from kdist.zk.errors import MultiFailed, NoNode
from kdist.zk.topic_values import PartitionState, TopicAssignment

CHUNK = 500  # partitions or znodes in a multi
CHUNK_BYTES = 400_000  # of their paths and data, well below a megabyte
CHUNKS_IN_FLIGHT = 8
_OF_A_TOPIC = 4  # znodes that it has whatever its partitions

T = TypeVar("T")


class Portion(NamedTuple, Generic[T]):
    """What is written in one multi, or in several if it is a single item."""

    items: list[T]
    operations: list[Operation]


class Removed(NamedTuple):
    """A topic to remove, and its partitions that have a state as far as is known."""

    name: str
    with_state: Sequence[TopicPartition]


class Writer:
    """Writes for one reign."""

    def __init__(self, zk: ZooKeeper, leadership: Leadership) -> None:
        self._zk = zk
        self._epoch_zk_version = leadership.epoch_zk_version
        self.controller_epoch = leadership.epoch
        self._bare: set[str] = set()  # topics created here that have no znode of a partition yet

    async def create_topics(
        self, planned: Sequence[Planned], states: Plan
    ) -> AsyncIterator[tuple[list[Topic], Plan]]:
        """Each topic with its settings and its partitions' first states at once, some at a time.

        Yields topics, and states, once they are written. A topic of very many partitions has none
        yet. Settings that were there without a topic are replaced: that is seldom, and asking first
        would take a request for each topic.
        """

        async def write_over(some: Sequence[Planned]) -> None:
            there = await self._existing_settings(each.topic.name for each in some)
            await self._write([op for each in some for op in _creation(each, states, there)])

        async for some in self._in_portions(
            chunked(planned, lambda each: _creation(each, states)), self._write, write_over
        ):
            with_states = [each for each in some if _fits(each.topic)]
            self._bare.update(each.topic.name for each in some if not _fits(each.topic))
            written = (each for planned in with_states for each in planned.topic.partitions)
            yield [each.topic for each in some], {each: states[each] for each in written}

    async def write_topics(self, topics: Sequence[Topic]) -> list[Topic]:
        """Write the assignments and ids of topics that exist; the topics as they are then."""
        for _, operations in chunked(topics, _rewriting):
            await self._write(operations)
        return [topic._replace(zk_version=topic.zk_version + 1) for topic in topics]

    async def write_states(self, plan: Plan) -> AsyncIterator[Plan]:
        """Write the states of the plan in chunks; yields each chunk once it is written."""
        parents = await self._parents(sorted({each.topic for each in _created(plan)}))
        waiting = iter(sorted(plan.items()))
        while chunk := dict(islice(waiting, CHUNK)):
            operations: list[Operation] = []
            for partition, state in chunk.items():
                operations += _state_operations(partition, state, parents)
            await self._write(operations)
            yield chunk

    async def request_deletions(self, names: Sequence[str]) -> None:
        """From now on whoever is controller deletes the topics."""
        for _, operations in chunked(names, _request):
            await self._write(operations)

    async def withdraw_deletion(self, name: str) -> None:
        """The topic is not to be deleted."""
        await self._write([Delete(znodes.TOPIC_DELETION.path(name))])

    async def remove_topics(self, removed: Sequence[Removed]) -> AsyncIterator[Sequence[str]]:
        """Remove all znodes of topics, some at a time; yields their names once they are gone.

        Those that the picture shows are removed without looking, as asking would take a request for
        each; if others are there, made by who knows whom, all that is there is looked up.
        """

        async def remove_found(some: Sequence[Removed]) -> None:
            for each in some:
                await self._remove_topic(each.name)

        async for some in self._in_portions(
            chunked(removed, _removal), self._remove_shown, remove_found
        ):
            yield [each.name for each in some]

    async def _in_portions(
        self,
        portions: Iterator[Portion[T]],
        write: Callable[[list[Operation]], Awaitable[None]],
        write_found: Callable[[Sequence[T]], Awaitable[None]],
    ) -> AsyncIterator[Sequence[T]]:
        """Write the portions, and yield the items of each once it is written.

        `write_found` is for a portion that was refused: it looks at what is there.
        """
        while some := list(islice(portions, CHUNKS_IN_FLIGHT)):
            # ZooKeeper syncs once for writes that come together, and carries them out in order.
            outcomes = await asyncio.gather(
                *(write(portion.operations) for portion in some), return_exceptions=True
            )
            for portion, outcome in zip(some, outcomes, strict=True):
                if isinstance(outcome, OutOfDate):
                    await write_found(portion.items)
                elif outcome is not None:
                    raise outcome
                yield portion.items

    async def _remove_shown(self, left: list[Operation]) -> None:
        """Partitions first; each topic's own znodes at once, in the last part."""
        while len(left) > max(CHUNK, _OF_A_TOPIC):  # then it is a single topic
            size = min(CHUNK, len(left) - _OF_A_TOPIC)
            await self._write(left[:size])
            del left[:size]
        await self._write(left)

    async def _remove_topic(self, name: str) -> None:
        """Partitions first; topic, settings and request at once."""
        root = znodes.TOPIC.path(name)
        *below, topic = [Delete(path) for path in await self._tree(root)]
        while len(below) > CHUNK:
            await self._write(below[:CHUNK])
            del below[:CHUNK]
        settings = await self._existing_settings([name])
        rest = [Delete(znodes.TOPIC_SETTINGS.path(each)) for each in settings]
        await self._write([*below, topic, *rest, Delete(znodes.TOPIC_DELETION.path(name))])

    async def _existing_settings(self, names: Iterable[str]) -> set[str]:
        """The topics that have a znode of settings."""
        asked = list(names)
        stats = await gather(self._zk.exists(znodes.TOPIC_SETTINGS.path(name)) for name in asked)
        return {name for name, stat in zip(asked, stats, strict=True) if stat is not None}

    async def _parents(self, topics: Sequence[str]) -> set[str]:
        """Which parents of states exist: another controller may have died amid creating them."""
        found = await gather(self._parents_of(name) for name in topics)
        return {path for paths in found for path in paths}

    async def _parents_of(self, name: str) -> list[str]:
        path = znodes.PARTITIONS.path(name)
        if name in self._bare:
            self._bare.discard(name)
            return [path]
        try:
            children = await self._zk.children(path)
        except NoNode:
            return []
        return [path, *(f"{path}/{child}" for child in children)]

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


def chunked(
    items: Iterable[T], operations_of: Callable[[T], Sequence[Operation]]
) -> Iterator[Portion[T]]:
    """The items in portions whose operations fit into a multi each (pure); at least one in each."""
    portion: Portion[T] = Portion([], [])
    size_bytes = 0
    for item in items:
        operations = operations_of(item)
        item_bytes = sum(len(each.path) + len(getattr(each, "data", b"")) for each in operations)
        count = len(portion.operations) + len(operations)
        if portion.items and (count > CHUNK or size_bytes + item_bytes > CHUNK_BYTES):
            yield portion
            portion, size_bytes = Portion([], []), 0
        portion.items.append(item)
        portion.operations.extend(operations)
        size_bytes += item_bytes
    if portion.items:
        yield portion


def _fits(topic: Topic) -> bool:
    """Whether it is created with the states of its partitions in a single multi."""
    return _OF_A_TOPIC + 2 * len(topic.assignment) <= CHUNK


def _creation(
    planned: Planned, states: Plan, with_settings: Container[str] = ()
) -> list[Operation]:
    """`with_settings`: the topics that have a znode of settings already."""
    topic = planned.topic
    path = znodes.TOPIC_SETTINGS.path(topic.name)
    encoded = znodes.TOPIC_SETTINGS.encode(EntitySettings(planned.configs))
    parents = {znodes.PARTITIONS.path(topic.name)}
    partitions = topic.partitions if _fits(topic) else ()
    return [
        Set(path, encoded) if topic.name in with_settings else Create(path, encoded),
        Create(znodes.TOPIC.path(topic.name), _encoded(topic)),
        Create(znodes.PARTITIONS.path(topic.name)),
        *(op for each in partitions for op in _state_operations(each, states[each], parents)),
    ]


def _rewriting(topic: Topic) -> list[Operation]:
    return [Set(znodes.TOPIC.path(topic.name), _encoded(topic), topic.zk_version)]


def _request(name: str) -> list[Operation]:
    return [Create(znodes.TOPIC_DELETION.path(name))]


def _removal(removed: Removed) -> list[Operation]:
    name = removed.name
    return [
        *(
            Delete(path)
            for each in removed.with_state
            for path in (znodes.PARTITION_STATE.path(*each), znodes.PARTITION.path(*each))
        ),
        Delete(znodes.PARTITIONS.path(name)),
        Delete(znodes.TOPIC.path(name)),
        Delete(znodes.TOPIC_SETTINGS.path(name)),
        Delete(znodes.TOPIC_DELETION.path(name)),
    ]


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
