"""A listener is told of each change once, by one task, and again if it was cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kdist.client.consumer.aio import Consumer
from kdist.client.consumer.rebalancing import Partitions, RebalanceListener
from kdist.model import TopicPartition
from tests.simulator.cluster import Cluster
from tests.unit.client.client_group_world import HASTY, TOPIC, Group, consumer_on, with_topic

pytestmark = pytest.mark.played(by=with_topic)

ZERO = TopicPartition(TOPIC, 0)
STRATEGIES = ["range", "cooperative-sticky"]


class Seeking(RebalanceListener):
    """Takes long to find where to read on; at first it is cut short."""

    def __init__(self, consumer: Consumer, cut: Callable[[], Any]) -> None:
        self.told: list[list[TopicPartition]] = []
        self._consumer = consumer
        self._cut = cut

    async def on_assigned(self, partitions: Partitions) -> None:
        self.told.append(list(partitions))
        if len(self.told) == 1:
            await self._cut()
        for each in partitions:
            self._consumer.seek(each, 7)


async def fail() -> None:
    raise TimeoutError


async def take_long() -> None:
    await asyncio.sleep(30)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("cut", [fail, take_long])
async def test_a_listener_that_was_cut_short_is_told_again_before_anything_is_read(
    cluster: Cluster, group: Group, /, strategy: str, cut: Callable[[], Any]
) -> None:
    """With cooperative-sticky it was not, and reading began where it had not sought yet."""
    await group.produce(10)
    consumer = consumer_on(cluster, "c", **HASTY, partition_assignment_strategy=strategy)
    listener = Seeking(consumer, cut)
    consumer.subscribe([TOPIC], listener)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await consumer.poll(20)
    await asyncio.sleep(1)
    found = [record.offset for record in await consumer.poll(20)]
    assert found[0] == 7
    assert listener.told == [[ZERO], [ZERO]]
    await consumer.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_while_a_listener_is_told_no_other_task_reads_what_is_assigned(
    cluster: Cluster, group: Group, /, strategy: str
) -> None:
    await group.produce(10)
    consumer = consumer_on(cluster, "c", **HASTY, partition_assignment_strategy=strategy)

    async def look() -> None:
        assert await consumer.position(ZERO) == 0
        assert await consumer.poll(5) == []

    listener = Seeking(consumer, look)
    consumer.subscribe([TOPIC], listener)
    found = await asyncio.gather(*[consumer.poll(20, 1) for _ in range(3)])
    assert sorted(record.offset for records in found for record in records) == [7, 8, 9]
    assert len(listener.told) == 1
    await consumer.close()


class Noting(RebalanceListener):
    """Notes what it is told, which takes it a while."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def on_assigned(self, partitions: Partitions) -> None:
        self.told.append(f"assigned {len(partitions)}")
        await asyncio.sleep(0.1)

    async def on_revoked(self, partitions: Partitions) -> None:
        self.told.append(f"revoked {len(partitions)}")
        await asyncio.sleep(0.1)

    async def on_lost(self, partitions: Partitions) -> None:
        self.told.append(f"lost {len(partitions)}")


async def poll_on(consumer: Consumer, found: list[bytes]) -> None:
    while True:
        found += [record.value for record in await consumer.poll(0.2, 3)]


async def iterate(consumer: Consumer, found: list[bytes]) -> None:
    async for record in consumer:
        found.append(record.value)
        await asyncio.sleep(0.01)


@pytest.mark.played(by=with_topic, partitions=8)
@pytest.mark.parametrize("work", [poll_on, iterate])
@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ("range", ["assigned 8", *["revoked 8", "assigned 4", "revoked 4", "assigned 8"] * 2]),
        (
            "cooperative-sticky",
            ["assigned 8", *["revoked 4", "assigned 0", "assigned 0", "assigned 4"] * 2],
        ),
    ],
)
async def test_tasks_that_share_a_consumer_take_part_in_each_rebalance_once(
    cluster: Cluster, group: Group, /, work: Callable[..., Any], strategy: str, told: list[str]
) -> None:
    """Each ran the protocol: listeners were told four times, and the member was thrown out."""
    consumer, listener = (
        consumer_on(cluster, "shared", **HASTY, partition_assignment_strategy=strategy),
        Noting(),
    )
    consumer.subscribe([TOPIC], listener)
    found: list[bytes] = []
    tasks = [asyncio.ensure_future(work(consumer, found)) for _ in range(4)]
    await cluster.until(lambda: len(consumer.assignment()) == 8)
    for _ in range(2):
        await group.produce(80)
        other = group.join(partition_assignment_strategy=strategy)
        await cluster.until(lambda: len(consumer.assignment()) == 4)
        await asyncio.sleep(3)
        await other.leave()
        await cluster.until(lambda: len(consumer.assignment()) == 8)
        await asyncio.sleep(3)
    told_once = [each for each in listener.told if not each.endswith(" 0")]
    assert told_once == [each for each in told if not each.endswith(" 0")]
    assert {*found, *group.found} == {b"%d" % number for number in range(160)}
    for each in tasks:
        each.cancel()
    await asyncio.wait(tasks)
    await consumer.close()
