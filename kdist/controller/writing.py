"""What the controller writes to ZooKeeper: always a multi that checks `/controller_epoch`.

A controller that was replaced gets `Fenced`; one whose picture is wrong gets `OutOfDate`. Nothing
was written then, or a part: what is written in several multis is so that any part of it is a state
from which a controller can go on. They are on their way together, as ZooKeeper carries them out in
order and syncs once for those that have come; one that needs what another makes, or removes,
is refused with it.
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
from functools import lru_cache
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

# Of a multi, of which a server keeps the last 500 in its memory: 155 MB of as many operations.
CHUNK = 500
CHUNK_BYTES = 400_000  # of their paths and data, well below a megabyte
CHUNKS_IN_FLIGHT = 8

T = TypeVar("T")
Step = list[Operation]
"""Operations that are in one multi whatever their number."""


class Portion(NamedTuple, Generic[T]):
    """What is written in one multi, or in several if it is a single item."""

    items: list[T]
    multis: list[list[Operation]]


class Filling:
    """A multi, while there is room in it."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._size_bytes = 0

    def add(self, step: Step) -> bool:
        """Take it in if there is room; there is for the first."""
        size_bytes = sum(len(each.path) + len(getattr(each, "data", b"")) for each in step)
        count = len(self.operations) + len(step)
        is_over = count > CHUNK or self._size_bytes + size_bytes > CHUNK_BYTES
        if self.operations and is_over:
            return False
        self.operations += step
        self._size_bytes += size_bytes
        return True


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
        self._room = asyncio.Semaphore(CHUNKS_IN_FLIGHT)

    async def create_topics(
        self, planned: Sequence[Planned], states: Plan
    ) -> AsyncIterator[tuple[list[Topic], Plan]]:
        """Each topic with its settings and its partitions' first states at once, some at a time.

        Yields topics, and states, once they are written. A topic of very many partitions comes
        before the last of them. Settings that were there without a topic are replaced: that is
        seldom, and asking first would take a request for each topic.
        """

        async def write_over(some: Sequence[Planned]) -> None:
            there = await self._existing_settings(each.topic.name for each in some)
            steps = (step for each in some for step in _creation(each, states, there))
            await self._write_all(packed(steps))

        portions = chunked(planned, lambda each: _creation(each, states))
        async for some in self._in_portions(portions, write_over):
            topics = [each.topic for each in some]
            yield topics, {each: states[each] for topic in topics for each in topic.partitions}

    async def write_topics(self, topics: Sequence[Topic]) -> list[Topic]:
        """Write the assignments and ids of topics that exist; the topics as they are then."""
        async for _ in self._in_portions(chunked(topics, _rewriting)):
            pass
        return [topic._replace(zk_version=topic.zk_version + 1) for topic in topics]

    async def write_states(self, plan: Plan) -> AsyncIterator[Plan]:
        """Write the states of the plan; yields some at a time, once they are written."""
        parents = await self._parents(sorted({each.topic for each in _created(plan)}))
        portions = chunked(sorted(plan.items()), lambda each: [_state_operations(*each, parents)])
        async for some in self._in_portions(portions):
            yield dict(some)

    async def request_deletions(self, names: Sequence[str]) -> None:
        """From now on whoever is controller deletes the topics."""
        async for _ in self._in_portions(chunked(names, _request)):
            pass

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

        async for some in self._in_portions(chunked(removed, _removal), remove_found):
            yield [each.name for each in some]

    async def _in_portions(
        self,
        portions: Iterator[Portion[T]],
        write_found: Callable[[Sequence[T]], Awaitable[None]] | None = None,
    ) -> AsyncIterator[Sequence[T]]:
        """Write the portions, and yield the items of each once it is written.

        `write_found` is for a portion that was refused: it looks at what is there.
        """
        while some := list(islice(portions, CHUNKS_IN_FLIGHT)):
            outcomes = await asyncio.gather(
                *(self._write_all(portion.multis) for portion in some), return_exceptions=True
            )
            for portion, outcome in zip(some, outcomes, strict=True):
                if write_found is not None and isinstance(outcome, OutOfDate):
                    await write_found(portion.items)
                elif outcome is not None:
                    raise outcome
                yield portion.items

    async def _write_all(self, multis: Iterable[Sequence[Operation]]) -> None:
        """Write each in its turn; when all are through, raise what the first was refused for."""
        outcomes = await asyncio.gather(*map(self._write, multis), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

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
            async with self._room:
                await fenced_multi(self._zk, self._epoch_zk_version, operations)
        except MultiFailed as failure:
            raise OutOfDate(f"ZooKeeper is not as expected: {failure}") from failure


def chunked(items: Iterable[T], steps_of: Callable[[T], Iterable[Step]]) -> Iterator[Portion[T]]:
    """The items in portions (pure): as many as fit into a multi, or one that needs several."""
    found: list[T] = []
    multi = Filling()
    for item in items:
        first, *others = packed(steps_of(item))
        if others or not multi.add(first):
            if found:
                yield Portion(found, [multi.operations])
            found, multi = [], Filling()
            if others:
                yield Portion([item], [first, *others])
                continue
            multi.add(first)
        found.append(item)
    if found:
        yield Portion(found, [multi.operations])


def packed(steps: Iterable[Step]) -> Iterator[list[Operation]]:
    """The steps in multis (pure), in order."""
    multi = Filling()
    for step in steps:
        if not multi.add(step):
            yield multi.operations
            multi = Filling()
            multi.add(step)
    yield multi.operations


def _creation(planned: Planned, states: Plan, with_settings: Container[str] = ()) -> Iterator[Step]:
    """`with_settings`: the topics that have a znode of settings already."""
    topic = planned.topic
    path = znodes.TOPIC_SETTINGS.path(topic.name)
    encoded = znodes.TOPIC_SETTINGS.encode(EntitySettings(planned.configs))
    parents = {znodes.PARTITIONS.path(topic.name)}
    yield [
        Set(path, encoded) if topic.name in with_settings else Create(path, encoded),
        Create(znodes.TOPIC.path(topic.name), _encoded(topic)),
        *map(Create, parents),
    ]
    for each in topic.partitions:
        yield _state_operations(each, states[each], parents)


def _rewriting(topic: Topic) -> list[Step]:
    return [[Set(znodes.TOPIC.path(topic.name), _encoded(topic), topic.zk_version)]]


def _request(name: str) -> list[Step]:
    return [[Create(znodes.TOPIC_DELETION.path(name))]]


def _removal(removed: Removed) -> Iterator[Step]:
    """Partitions first; the topic's own znodes at once."""
    name = removed.name
    for each in removed.with_state:
        yield [Delete(znodes.PARTITION_STATE.path(*each)), Delete(znodes.PARTITION.path(*each))]
    yield [
        Delete(znodes.PARTITIONS.path(name)),
        Delete(znodes.TOPIC.path(name)),
        Delete(znodes.TOPIC_SETTINGS.path(name)),
        Delete(znodes.TOPIC_DELETION.path(name)),
    ]


def _created(plan: Plan) -> Iterable[TopicPartition]:
    return (each for each, state in plan.items() if state.zk_version == FIRST_ZK_VERSION)


def _state_operations(partition: TopicPartition, state: LeaderAndIsr, parents: set[str]) -> Step:
    """To write a state over the one before; to create it, with the parents it lacks."""
    path = znodes.PARTITION_STATE.path(*partition)
    encoded = _encoded_state(
        PartitionState(state.leader, state.leader_epoch, state.isr, state.controller_epoch)
    )
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


@lru_cache
def _encoded_state(state: PartitionState) -> bytes:
    """Those of new partitions with the same replicas are the same."""
    return znodes.PARTITION_STATE.encode(state)
