"""Many topics in few transactions, and unexpected znodes that others have left."""

from __future__ import annotations

import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from kdist.controller.context import FIRST_ZK_VERSION, OutOfDate, Topic
from kdist.controller.topics import Planned
from kdist.controller.writing import (
    CHUNK,
    CHUNK_BYTES,
    CHUNKS_IN_FLIGHT,
    FencedWriter,
    Operations,
    Removed,
    chunked,
    packed,
)
from kdist.model import TOPIC_NAME_MAX, LeaderAndIsr, TopicPartition
from kdist.testing.memory_zookeeper import MemoryEnsemble, MemoryZooKeeper
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from kdist.zk import znodes
from kdist.zk.client import Create, Delete, Operation, Watch
from kdist.zk.election import claim
from kdist.zk.errors import Fenced
from kdist.zk.values import EntitySettings, VettedDisk

MANY = [f"topic-{number:03}" for number in range(300)]


class CountingWriter:
    """A controller's writer, and a count of its transactions."""

    def __init__(self, zk: MemoryZooKeeper, writer: FencedWriter) -> None:
        self.zk, self.writer = zk, writer
        self.multis: list[int] = []
        self.in_flight_max = self.in_flight = 0
        self.looks = 0
        self.created: list[str] = []
        carry_out, look = zk.multi, zk.children

        async def counted(operations: Sequence[Operation]) -> Any:
            self.multis.append(len(operations))
            self.in_flight += 1
            self.in_flight_max = max(self.in_flight_max, self.in_flight)
            try:
                return await carry_out(operations)
            finally:
                self.in_flight -= 1

        async def looked(path: str, watch: Watch | None = None) -> list[str]:
            self.looks += 1
            return await look(path, watch)

        zk.multi, zk.children = counted, looked  # type: ignore[method-assign]

    async def create(self, names: Sequence[str], partitions: int = 2) -> None:
        """Topics with states, as a controller makes them."""
        plan = {each: state() for name in names for each in parts(name, partitions)}
        topics = [planned(name, partitions) for name in names]
        async for created, written in self.writer.create_topics(topics, plan):
            self.created += [topic.name for topic in created]
            for partition in written:
                del plan[partition]
        assert all([is_written async for _, is_written in self.writer.write_states(plan)])

    async def remove(self, *removed: Removed) -> list[str]:
        """The names, in the order they went."""
        await self.writer.request_deletions([each.name for each in removed])
        return [name async for names in self.writer.remove_topics(removed) for name in names]

    async def names(self) -> list[str]:
        """The topics that there are."""
        return await self.zk.children(znodes.TOPICS.path())


def play(scenario: Callable[[CountingWriter], Awaitable[None]]) -> None:
    """Carry it out as the first controller."""
    clock = VirtualClock()
    loop, rng = VirtualLoop(clock), random.Random(0)
    ensemble = MemoryEnsemble(clock, rng, delay_ms_max=2)

    async def run() -> None:
        zk = ensemble.client()
        await zk.connect()
        for path in znodes.STARTING_PATHS:
            await zk.create(path, make_parents=True)
        leadership = await claim(zk, 1, 0)
        assert leadership is not None
        await scenario(CountingWriter(zk, FencedWriter(zk, leadership)))

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


pytestmark = pytest.mark.played(by=play)


def parts(name: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(name, index) for index in range(count)]


def planned(name: str, partitions: int = 2) -> Planned:
    assignment = dict.fromkeys(range(partitions), (1,))
    topic = Topic(name, uuid.uuid5(uuid.NAMESPACE_DNS, name), assignment, FIRST_ZK_VERSION)
    return Planned(topic, {"retention.ms": "77"})


def state() -> LeaderAndIsr:
    return LeaderAndIsr(1, 0, (1,), 1, FIRST_ZK_VERSION)


def known(name: str, partitions: int = 2) -> Removed:
    return Removed(name, parts(name, partitions))


async def test_hundreds_of_topics_are_created_and_deleted_in_a_few_transactions(
    counting: CountingWriter, /
) -> None:
    await counting.create(MANY)
    assert await counting.names() == counting.created == MANY
    data, _ = await counting.zk.get(znodes.TOPIC.path(MANY[7]))
    found = znodes.TOPIC.decode("", data)
    assert (found.topic_id, found.partitions) == (planned(MANY[7]).topic.id, {0: (1,), 1: (1,)})
    assert len(counting.multis) == counting.in_flight_max == 5
    assert max(counting.multis) <= CHUNK + 1
    counting.multis.clear()
    assert await counting.remove(*map(known, MANY)) == MANY
    assert await counting.names() == []
    assert await counting.zk.children(znodes.TOPIC_SETTINGS.parent) == []
    assert await counting.zk.children(znodes.TOPIC_DELETIONS.path()) == []
    assert len(counting.multis) == 6
    assert max(counting.multis) <= CHUNK + 1


async def test_a_topic_and_its_partition_states_are_created_in_one_transaction(
    counting: CountingWriter, /
) -> None:
    await counting.create(["one"], 3)
    assert len(counting.multis) == 1
    made = (await counting.zk.get(znodes.TOPIC.path("one"))).stat.czxid
    for partition in parts("one", 3):
        path = znodes.PARTITION_STATE.path(*partition)
        data, stat = await counting.zk.get(path)
        assert znodes.PARTITION_STATE.decode(path, data).with_version(stat.version) == state()
        assert stat.czxid == made


@pytest.mark.parametrize(("count", "multis"), [(248, 1), (249, 2), (1_000, 5), (2_500, 11)])
async def test_a_topic_larger_than_a_transaction_takes_several_sent_together(
    counting: CountingWriter, /, count: int, multis: int
) -> None:
    await counting.create(["large"], count)
    assert len(counting.multis) == multis
    assert counting.in_flight_max == min(multis, CHUNKS_IN_FLIGHT)
    assert counting.looks == 0
    assert max(counting.multis) <= CHUNK + 1
    for partition in parts("large", count):
        assert await counting.zk.exists(znodes.PARTITION_STATE.path(*partition))


async def test_the_states_of_thousands_of_partitions_are_sent_together(
    counting: CountingWriter, /
) -> None:
    await counting.create(["large"], 2_000)
    counting.multis.clear()
    counting.in_flight_max = 0
    after = state()._replace(leader=2, zk_version=FIRST_ZK_VERSION + 1)
    plan = dict.fromkeys(parts("large", 2_000), after)
    async for written, is_written in counting.writer.write_states(plan):
        assert is_written
        for partition in written:
            del plan[partition]
    assert not plan
    assert counting.multis == [CHUNK + 1] * 4
    assert counting.in_flight_max == 4


@pytest.mark.parametrize("count", [2, 2_000])
async def test_nothing_is_left_of_a_topic_that_was_refused(
    counting: CountingWriter, /, count: int
) -> None:
    await counting.zk.create(znodes.TOPIC.path("taken"), b"{}")
    with pytest.raises(OutOfDate):
        await counting.create(["taken"], count)
    assert await counting.zk.children(znodes.TOPIC.path("taken")) == []
    assert await counting.zk.exists(znodes.TOPIC_SETTINGS.path("taken")) is None


@pytest.mark.parametrize(("names", "count"), [(MANY, 2), (MANY[:8], 300)])
async def test_orphaned_settings_are_replaced(
    counting: CountingWriter, /, names: list[str], count: int
) -> None:
    path = znodes.TOPIC_SETTINGS.path(MANY[7])
    await counting.zk.create(path, znodes.TOPIC_SETTINGS.encode(EntitySettings({"old": "1"})))
    await counting.create(names, count)
    assert await counting.names() == names
    data, _ = await counting.zk.get(path)
    assert znodes.TOPIC_SETTINGS.decode(path, data).settings == {"retention.ms": "77"}
    for name in names:
        assert await counting.zk.exists(znodes.PARTITION_STATE.path(name, count - 1))


async def test_a_topic_that_another_controller_created_is_noticed(
    counting: CountingWriter, /
) -> None:
    await counting.zk.create(znodes.TOPIC.path(MANY[7]), b"{}")
    with pytest.raises(OutOfDate):
        await counting.create(MANY[:10])
    assert await counting.names() == [MANY[7]]


async def test_a_refusal_is_told_when_nothing_of_the_topic_is_being_written_any_more(
    counting: CountingWriter, /
) -> None:
    await counting.zk.create(znodes.TOPIC.path("large"), b"{}")
    with pytest.raises(OutOfDate):
        await counting.create(["large"], 2_500)
    assert counting.in_flight_max > 2
    assert counting.in_flight == 0


@pytest.mark.parametrize("there", [(), (1,), (1, 2)])
async def test_disks_are_noted_over_what_is_there_known_or_not(
    counting: CountingWriter, /, there: tuple[int, ...]
) -> None:
    disks = {1: VettedDisk("a", "x"), 2: VettedDisk("b", "y")}
    for broker_id in there:
        await counting.zk.create(znodes.VETTED_DISK.path(broker_id), b"{}")
    await counting.writer.write_disks(disks, known={1})
    await counting.writer.write_disks(disks, known={1, 2})
    assert await noted(counting.zk) == disks


async def test_disks_are_noted_where_somebody_has_removed_all(counting: CountingWriter, /) -> None:
    disks = {1: VettedDisk("a", "x")}
    await counting.zk.delete(znodes.VETTED_DISKS.path())
    await counting.writer.write_disks(disks, known=set())
    assert await noted(counting.zk) == disks


async def noted(zk: MemoryZooKeeper) -> dict[int, VettedDisk]:
    found = {}
    for name in await zk.children(znodes.VETTED_DISKS.path()):
        path = znodes.VETTED_DISK.path(name)
        data, _ = await zk.get(path)
        found[int(name)] = znodes.VETTED_DISK.decode(path, data)
    return found


async def test_a_topic_with_unknown_znodes_below_it_is_deleted_all_the_same(
    counting: CountingWriter, /
) -> None:
    await counting.create(MANY[:20])
    for path in (
        znodes.PARTITION.path(MANY[3], 9),
        znodes.PARTITION_STATE.path(MANY[3], 9),
        f"{znodes.TOPIC.path(MANY[4])}/note",
    ):
        await counting.zk.create(path)
    await counting.zk.delete(znodes.TOPIC_SETTINGS.path(MANY[5]))
    assert await counting.remove(*map(known, MANY[:20])) == MANY[:20]
    assert await counting.names() == []


@pytest.mark.parametrize("count", [248, 249, 250, 2_000])
async def test_a_topic_larger_than_a_transaction_is_removed_in_parts_without_a_look(
    counting: CountingWriter, /, count: int
) -> None:
    large = "x" * TOPIC_NAME_MAX  # with the most partitions, a megabyte of paths
    await counting.create(["small", large], count)
    counting.multis.clear()
    counting.in_flight_max = 0
    assert await counting.remove(known("small", count), known(large, count)) == ["small", large]
    assert counting.looks == 0
    assert counting.in_flight_max == min(len(counting.multis) - 1, CHUNKS_IN_FLIGHT)
    assert max(counting.multis) <= CHUNK + 1
    assert min(counting.multis[1:]) > 4  # a topic's own znodes are never parted
    assert await counting.names() == []
    assert await counting.zk.children(znodes.TOPIC_DELETIONS.path()) == []


async def test_a_controller_that_was_replaced_writes_nothing(counting: CountingWriter, /) -> None:
    await counting.zk.set(znodes.CONTROLLER_EPOCH.path(), b"9")
    with pytest.raises(Fenced):
        await counting.create(MANY[:3])
    assert await counting.names() == []


def test_portions_keep_to_both_limits_and_to_the_order() -> None:
    def large(item: int) -> list[Operations]:
        return [[Create("/x", b"y" * item)]]

    third = CHUNK_BYTES // 3
    sizes = [third, third, third, 2 * CHUNK_BYTES, 1, 2]
    portions = list(chunked(sizes, large))
    assert [each.multis for each in portions] == [
        [[op for item in each.items for step in large(item) for op in step]] for each in portions
    ]
    assert [each.items for each in portions] == [
        [third, third],
        [third],
        [2 * CHUNK_BYTES],
        [1, 2],
    ]
    many = chunked(range(1201), lambda _: [[Create("/x")]])
    assert [len(each.items) for each in many] == [500, 500, 201]
    assert list(chunked([], large)) == []


def test_an_item_that_needs_several_multis_is_parted_between_its_steps_and_alone() -> None:
    def pairs(item: int) -> list[Operations]:
        return [[Delete("/a"), Delete("/b")]] * item

    portions = list(chunked([1, CHUNK, 1, 1, CHUNK // 2, 1], pairs))
    assert [each.items for each in portions] == [[1], [CHUNK], [1, 1], [CHUNK // 2], [1]]
    assert [[len(multi) for multi in each.multis] for each in portions] == [
        [2],
        [CHUNK, CHUNK],
        [4],
        [CHUNK],
        [2],
    ]
    three = [[Delete("/a")] * 3] * CHUNK
    assert {len(multi) % 3 for multi in packed(three)} == {0}
