"""What the controller writes to ZooKeeper: always in a multi that checks `/controller_epoch`.

A controller that was replaced gets `Fenced`, which ends its term. A partition state that someone
else has written ends nothing: the caller gets back what was refused, to read it and plan again.
Where topics are not as expected, `OutOfDate` is raised; a write that takes several multis may then
have been carried out in part, and each such part is a state from which a controller can continue.
Several multis are in flight at once: ZooKeeper carries them out in order, and syncs once for all
that have arrived. If one is refused, so are the later ones that depend on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import lru_cache
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from kdist.controller.context import FIRST_ZK_VERSION, OutOfDate, Topic
from kdist.controller.elections import Plan
from kdist.controller.loading import existing
from kdist.controller.topics import Planned
from kdist.model import LeaderAndIsr, TopicPartition
from kdist.zk import znodes
from kdist.zk.client import Create, Delete, Operation, Set, ZooKeeper, gather
from kdist.zk.election import Leadership, fenced_multi
from kdist.zk.errors import ConnectionLoss, MultiFailed, NoNode, NotEmpty
from kdist.zk.values import (
    EntitySettings,
    PartitionState,
    Reassignment,
    TopicAssignment,
    VettedDisk,
)

logger = logging.getLogger(__name__)

# Operations in a multi. A server keeps its last 500 transactions in memory: 155 MB of this size.
CHUNK = 500
CHUNK_BYTES = 400_000  # paths and data in a multi, well below a megabyte
CHUNKS_IN_FLIGHT = 8

T = TypeVar("T")
Operations = list[Operation]
"""Operations that must be in the same multi, however many they are."""


class Chunk(NamedTuple, Generic[T]):
    """Items that are written in one multi, or a single item that needs several."""

    items: list[T]
    multis: list[list[Operation]]


class MultiBuilder:
    """A multi that is being filled."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._size_bytes = 0

    def add(self, step: Operations) -> bool:
        """Add the step if there is room; the first always fits."""
        size_bytes = sum(len(each.path) + len(getattr(each, "data", b"")) for each in step)
        count = len(self.operations) + len(step)
        is_over = count > CHUNK or self._size_bytes + size_bytes > CHUNK_BYTES
        if self.operations and is_over:
            return False
        self.operations += step
        self._size_bytes += size_bytes
        return True


class Removed(NamedTuple):
    """A topic to remove, and those of its partitions that are known to have a state."""

    name: str
    with_state: Sequence[TopicPartition]


class FencedWriter:
    """Writes for one term."""

    def __init__(self, zk: ZooKeeper, leadership: Leadership) -> None:
        self._zk = zk
        self._epoch_zk_version = leadership.epoch_zk_version
        self.controller_epoch = leadership.epoch
        self.begun = 0  # writes, whatever their outcome
        self._room = asyncio.Semaphore(CHUNKS_IN_FLIGHT)

    async def create_topics(
        self, planned: Sequence[Planned], states: Plan
    ) -> AsyncIterator[tuple[list[Topic], Plan]]:
        """Create topics with their settings and their partitions' first states, chunk by chunk.

        Yields topics and states once they are written. A topic that needs several multis exists
        before its last partitions have states. Settings left over without a topic are overwritten;
        as they are rare, they are looked for only after a refusal, not with a request per topic.
        """

        async def write_over(some: Sequence[Planned]) -> None:
            names = [each.topic.name for each in some]
            there = await existing(self._zk, znodes.TOPIC_SETTINGS, names)
            steps = (step for each in some for step in _creation(each, states, there))
            await self._write_all(packed(steps))

        chunks = chunked(planned, lambda each: _creation(each, states))
        async for some in self._in_chunks(chunks, write_over):
            topics = [each.topic for each in some]
            yield topics, {each: states[each] for topic in topics for each in topic.partitions}

    async def write_disks(self, disks: Mapping[int, VettedDisk], known: Container[int]) -> None:
        """Write by which disks the brokers' replicas were judged; `known` have been before.

        After a refusal it looks for what is there: that may be corrupt or removed, and there has to
        be a controller all the same.
        """

        async def write_over(some: Sequence[tuple[int, VettedDisk]]) -> None:
            there = await existing(self._zk, znodes.VETTED_DISK, [str(each) for each, _ in some])
            parent = znodes.VETTED_DISKS.path()
            is_removed = await self._zk.exists(parent) is None
            above: list[Operations] = [[Create(parent)]] if is_removed else []
            writes = [_noting(*each, is_there=str(each[0]) in there) for each in some]
            await self._write_all(packed([*above, *writes]))

        chunks = chunked(
            sorted(disks.items()), lambda each: [_noting(*each, is_there=each[0] in known)]
        )
        async for _ in self._in_chunks(chunks, write_over):
            pass

    async def write_topics(self, topics: Sequence[Topic]) -> list[Topic]:
        """Write assignments and ids of existing topics; returns them with their new versions."""
        async for _ in self._in_chunks(chunked(topics, _rewriting)):
            pass
        return [topic._replace(zk_version=topic.zk_version + 1) for topic in topics]

    async def write_moves(self, topic: Topic, states: Plan) -> Topic:
        """Write an existing topic's assignment and these states in one multi, or nothing.

        Returns the topic with its new version.
        """
        steps = [_rewriting(topic)[0]]
        steps += [_state_operations(*each, set()) for each in sorted(states.items())]
        await self._write([operation for step in steps for operation in step])
        return topic._replace(zk_version=topic.zk_version + 1)

    async def write_reassignment(self, left: Mapping[TopicPartition, tuple[int, ...]]) -> None:
        """Write what is left of an old tool's request; nothing is what that tool waits for."""
        path = znodes.REASSIGNMENT.path()
        await self._update_request(Set(path, Reassignment(left).encode()) if left else Delete(path))

    async def write_states(self, plan: Plan) -> AsyncIterator[tuple[Plan, bool]]:
        """Write the states of the plan, chunk by chunk; yields each, and whether it was written.

        If not, a znode is not as expected, or the outcome is not known: read the states again.
        """
        parents = await self._parents(sorted({each.topic for each in _created(plan)}))
        chunks = chunked(plan.items(), lambda each: [_state_operations(*each, parents)])
        async for some, refusal in self._outcomes(chunks):
            if not isinstance(refusal, OutOfDate | ConnectionLoss | None):
                raise refusal
            yield dict(some), refusal is None

    async def request_deletions(self, names: Sequence[str]) -> None:
        """Record that the topics are to be deleted, by this controller or any later one."""
        async for _ in self._in_chunks(chunked(names, _request)):
            pass

    async def withdraw_deletion(self, name: str) -> None:
        """Remove the request to delete the topic."""
        await self._update_request(Delete(znodes.TOPIC_DELETION.path(name)))

    async def complete_preferred_election(self) -> None:
        """Remove an old tool's request, which is what that tool waits for."""
        await self._update_request(Delete(znodes.PREFERRED_ELECTION.path()))

    async def _update_request(self, operation: Set | Delete) -> None:
        """Write what has become of somebody's request, unless that is gone or cannot be removed.

        Whoever made it may remove it, or put znodes below it; neither is about the cluster.
        """
        try:
            await self._write([operation])
        except OutOfDate as refused:
            failure = refused.__cause__
            if not isinstance(failure, MultiFailed) or not isinstance(
                failure.error, NoNode | NotEmpty
            ):
                raise
            logger.warning("a request is left as it is: %s", failure.error)

    async def remove_topics(self, removed: Sequence[Removed]) -> AsyncIterator[Sequence[str]]:
        """Remove all znodes of topics, chunk by chunk; yields their names once they are gone.

        The znodes that the controller context implies are deleted without reading them first, which
        would take a request per topic. Only if that is refused, because someone added or
        removed some, are the existing ones looked up.
        """

        async def remove_found(some: Sequence[Removed]) -> None:
            for each in some:
                await self._remove_topic(each.name)

        async for some in self._in_chunks(chunked(removed, _removal), remove_found):
            yield [each.name for each in some]

    async def _in_chunks(
        self,
        chunks: Iterator[Chunk[T]],
        write_found: Callable[[Sequence[T]], Awaitable[None]] | None = None,
    ) -> AsyncIterator[Sequence[T]]:
        """Write the chunks, and yield the items of each once it is written.

        A chunk that was refused is given to `write_found`, which reads what exists and tries again.
        """
        async for items, refusal in self._outcomes(chunks):
            if write_found is not None and isinstance(refusal, OutOfDate):
                await write_found(items)
            elif refusal is not None:
                raise refusal
            yield items

    async def _outcomes(
        self, chunks: Iterator[Chunk[T]]
    ) -> AsyncIterator[tuple[Sequence[T], BaseException | None]]:
        """Write the chunks; yields the items of each, and why it was refused or None."""
        while some := await _built(chunks):
            outcomes = await asyncio.gather(
                *(self._write_all(chunk.multis) for chunk in some), return_exceptions=True
            )
            for chunk, outcome in zip(some, outcomes, strict=True):
                yield chunk.items, outcome

    async def _write_all(self, multis: Iterable[Sequence[Operation]]) -> None:
        """Write them all; once all are answered, raise the first refusal."""
        outcomes = await asyncio.gather(*map(self._write, multis), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _remove_topic(self, name: str) -> None:
        """Remove a topic as it is found: partitions first; topic, settings and request in one."""
        root = znodes.TOPIC.path(name)
        *below, topic = [Delete(path) for path in await self._tree(root)]
        while len(below) > CHUNK:
            await self._write(below[:CHUNK])
            del below[:CHUNK]
        settings = await existing(self._zk, znodes.TOPIC_SETTINGS, [name])
        rest = [Delete(znodes.TOPIC_SETTINGS.path(each)) for each in settings]
        await self._write([*below, topic, *rest, Delete(znodes.TOPIC_DELETION.path(name))])

    async def _parents(self, topics: Sequence[str]) -> set[str]:
        """The parents of states that exist: an earlier controller may have died creating them."""
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
                self.begun += 1
                await fenced_multi(self._zk, self._epoch_zk_version, operations)
        except MultiFailed as failure:
            raise OutOfDate(f"ZooKeeper is not as expected: {failure}") from failure


async def _built(chunks: Iterator[Chunk[T]]) -> list[Chunk[T]]:
    """The next chunks, with a turn of the loop after each: to build one takes some 2 ms."""
    found: list[Chunk[T]] = []
    for chunk in islice(chunks, CHUNKS_IN_FLIGHT):
        if found:
            await asyncio.sleep(0)
        found.append(chunk)
    return found


def chunked(
    items: Iterable[T], steps_of: Callable[[T], Iterable[Operations]]
) -> Iterator[Chunk[T]]:
    """Group the items (pure): as many as fit into a multi, or one that needs several."""
    found: list[T] = []
    multi = MultiBuilder()
    for item in items:
        first, *others = packed(steps_of(item))
        if others or not multi.add(first):
            if found:
                yield Chunk(found, [multi.operations])
            found, multi = [], MultiBuilder()
            if others:
                yield Chunk([item], [first, *others])
                continue
            multi.add(first)
        found.append(item)
    if found:
        yield Chunk(found, [multi.operations])


def packed(steps: Iterable[Operations]) -> Iterator[list[Operation]]:
    """Group the steps into multis, in order (pure)."""
    multi = MultiBuilder()
    for step in steps:
        if not multi.add(step):
            yield multi.operations
            multi = MultiBuilder()
            multi.add(step)
    yield multi.operations


def _creation(
    planned: Planned, states: Plan, with_settings: Container[str] = ()
) -> Iterator[Operations]:
    """`with_settings`: the topics that already have a settings znode."""
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


def _noting(broker_id: int, disk: VettedDisk, *, is_there: bool) -> Operations:
    path, data = znodes.VETTED_DISK.path(broker_id), disk.encode()
    return [Set(path, data) if is_there else Create(path, data)]


def _rewriting(topic: Topic) -> list[Operations]:
    return [[Set(znodes.TOPIC.path(topic.name), _encoded(topic), topic.zk_version)]]


def _request(name: str) -> list[Operations]:
    return [[Create(znodes.TOPIC_DELETION.path(name))]]


def _removal(removed: Removed) -> Iterator[Operations]:
    """Partitions first; the topic's own znodes in one step."""
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


def _state_operations(
    partition: TopicPartition, state: LeaderAndIsr, parents: set[str]
) -> Operations:
    """Overwrite a partition's state, or create it with its missing parents."""
    path = znodes.PARTITION_STATE.path(*partition)
    encoded = _encoded_state(PartitionState.of(state))
    if state.zk_version != FIRST_ZK_VERSION:
        return [Set(path, encoded, state.zk_version - 1)]
    above = (znodes.PARTITIONS.path(partition.topic), znodes.PARTITION.path(*partition))
    missing = [parent for parent in above if parent not in parents]
    parents.update(missing)
    return [*(Create(parent) for parent in missing), Create(path, encoded)]


def _encoded(topic: Topic) -> bytes:
    rest = (topic.adding, topic.removing, topic.before, topic.removed)
    return znodes.TOPIC.encode(TopicAssignment(topic.assignment, topic.id, *rest))


@lru_cache
def _encoded_state(state: PartitionState) -> bytes:
    """Cached: new partitions with the same replicas have the same state."""
    return znodes.PARTITION_STATE.encode(state)
