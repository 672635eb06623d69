"""What a new controller reads: all that is sound, and never too much at once."""

from __future__ import annotations

import random
import uuid
from collections.abc import Awaitable, Callable

import pytest

from kdist.config.addresses import Listener
from kdist.controller.context import UNKNOWN_DISK
from kdist.controller.loading import IN_FLIGHT_MAX, Loader
from kdist.model import TopicPartition
from kdist.testing.memory_zookeeper import MemoryEnsemble, MemoryZooKeeper
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from kdist.zk import znodes
from kdist.zk.client import WatchEvent
from kdist.zk.registration import BrokerRegistration, Endpoint
from kdist.zk.values import PartitionState, TopicAssignment, VettedDisk

MANY = [TopicPartition("many", index) for index in range(2 * IN_FLIGHT_MAX + 1)]


def play(scenario: Callable[[MemoryZooKeeper, Loader], Awaitable[None]]) -> None:
    clock = VirtualClock()
    loop = VirtualLoop(clock)
    ensemble = MemoryEnsemble(clock, random.Random(0))

    async def run() -> None:
        zk = ensemble.client()
        await zk.connect()
        for path in znodes.STARTING_PATHS:
            await zk.create(path, make_parents=True)
        await scenario(zk, Loader(zk, "INTERNAL"))

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


pytestmark = pytest.mark.played(by=play)


def ignore(_: WatchEvent) -> None:
    """No test changes what it has read."""


async def test_disks_are_those_of_brokers_and_unknown_where_they_cannot_be_read(
    zk: MemoryZooKeeper, loader: Loader, /
) -> None:
    for name, data in [
        ("1", znodes.VETTED_DISK.encode(VettedDisk("a", "first"))),
        ("22", b"{"),
        ("none", znodes.VETTED_DISK.encode(VettedDisk("b", None))),
    ]:
        await zk.create(znodes.VETTED_DISK.path(name), data)
    assert await loader.vetted_disks() == {1: VettedDisk("a", "first"), 22: UNKNOWN_DISK}


async def test_disks_of_which_an_older_kdist_kept_nothing_are_none(
    zk: MemoryZooKeeper, loader: Loader, /
) -> None:
    await zk.delete(znodes.VETTED_DISKS.path())
    assert await loader.vetted_disks() == {}


@pytest.mark.parametrize(
    ("data", "asked"),
    [
        (None, None),
        (b'{"version":1,"partitions":[{"topic":"a","partition":3}]}', [TopicPartition("a", 3)]),
        (b"{", []),
    ],
)
async def test_an_old_tools_request_for_preferred_leaders_names_partitions(
    zk: MemoryZooKeeper, loader: Loader, /, data: bytes | None, asked: list[TopicPartition] | None
) -> None:
    if data is not None:
        await zk.create(znodes.PREFERRED_ELECTION.path(), data)
    found = await loader.preferred_election(ignore)
    assert (None if found is None else list(found.partitions)) == asked


async def test_a_broker_is_reached_by_the_listener_for_brokers_and_ignored_without_it(
    zk: MemoryZooKeeper, loader: Loader, /
) -> None:
    for broker_id, names in enumerate([("CLIENTS", "INTERNAL"), ("INTERNAL",), ("CLIENTS",)]):
        listeners = [Listener(name, f"{name}-{broker_id}", 9092) for name in names]
        value = BrokerRegistration(tuple(Endpoint(each, "PLAINTEXT") for each in listeners), 0)
        await zk.create(znodes.BROKER.path(broker_id), znodes.BROKER.encode(value))
    found = await loader.brokers(ignore)
    assert {each.id: each.address.host for each in found.values()} == {
        0: "INTERNAL-0",
        1: "INTERNAL-1",
    }


async def test_a_topic_that_is_being_moved_keeps_what_it_gains_and_loses(
    zk: MemoryZooKeeper, loader: Loader, /
) -> None:
    value = TopicAssignment({0: (1, 2, 3)}, uuid.UUID(int=5), {0: (3,)}, {0: (1,)})
    await zk.create(znodes.TOPIC.path("moving"), znodes.TOPIC.encode(value))
    (found,), unreadable = await loader.topics(["moving", "gone"], lambda _: ignore)
    assert (found.assignment, found.adding, found.removing) == value[:1] + value[2:4]
    assert not unreadable


def test_states_are_read_a_part_at_a_time_with_the_transactions_that_wrote_them() -> None:
    asked: list[int] = []

    async def scenario(zk: MemoryZooKeeper, loader: Loader) -> None:
        wrote = {}
        for each in (MANY[0], MANY[-1]):
            path = znodes.PARTITION_STATE.path(*each)
            data = znodes.PARTITION_STATE.encode(PartitionState(1, 4, (1, 2), 3))
            await zk.create(path, data, make_parents=True)
            wrote[each] = (await zk.get(path)).stat.mzxid
        get_many = zk.get_many

        async def counted(paths: list[str]) -> object:
            asked.append(len(paths))
            return await get_many(paths)

        zk.get_many = counted  # type: ignore[method-assign, assignment]
        found, unreadable = await loader.states(MANY)
        assert {each.partition: each.mzxid for each in found} == wrote
        assert len(set(wrote.values())) == 2
        assert not unreadable

    play(scenario)
    assert asked == [IN_FLIGHT_MAX, IN_FLIGHT_MAX, 1]
