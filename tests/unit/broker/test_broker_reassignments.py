"""Brokers that are asked to move partitions, under a throttle too: logs, fetchers, rates."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kdist.broker.broker import Broker
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.network.client import Client
from kdist.protocol.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kdist.protocol.describe_configs import BROKER, TOPIC
from kdist.protocol.incremental_alter_configs import SET
from kdist.protocol.list_partition_reassignments import (
    AskedReassignmentTopic,
    ListPartitionReassignmentsRequest,
)
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.records.build import build_batch
from kdist.zk import znodes
from kdist.zk.values import TopicAssignment
from tests.simulator.cluster import Cluster
from tests.unit.broker.broker_configs import change
from tests.unit.broker.test_broker_elections import assign

CLICKS = TopicPartition("clicks", 0)

Replicas = tuple[int, ...]


async def move(
    cluster: Cluster, broker_id: int, *targets: tuple[int, Replicas | None]
) -> tuple[Error, dict[int, Error]]:
    """The answer's error, and those of partitions of `clicks`."""
    partitions = [
        ReassignablePartition(partition_index=i, replicas=None if each is None else [*each])
        for i, each in targets
    ]
    topic = ReassignableTopic(name="clicks", partitions=partitions)
    request = AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=5_000)
    answer = await (await cluster.client(broker_id)).send(request, 0)
    results = [each for topic in answer.responses for each in topic.partitions]
    assert all(bool(each.error_message) == bool(each.error_code) for each in results)
    errors = {each.partition_index: Error.of(each.error_code) for each in results}
    return Error.of(answer.error_code), errors


async def listed(
    cluster: Cluster, broker_id: int, *asked: int
) -> dict[int, tuple[Replicas, Replicas, Replicas]] | Error:
    topics = [AskedReassignmentTopic(name="clicks", partition_indexes=[*asked])] if asked else None
    request = ListPartitionReassignmentsRequest(topics=topics, timeout_ms=5_000)
    answer = await (await cluster.client(broker_id)).send(request, 0)
    if answer.error_code:
        return Error.of(answer.error_code)
    return {
        each.partition_index: (
            tuple(each.replicas),
            tuple(each.adding_replicas),
            tuple(each.removing_replicas),
        )
        for topic in answer.topics
        for each in topic.partitions
    }


def topic_of(cluster: Cluster) -> TopicAssignment:
    path = znodes.TOPIC.path("clicks")
    return znodes.TOPIC.decode(path, cluster.ensemble.tree.get(path).data)


RATE = 20_000  # bytes a second
WINDOWS = 15  # of two seconds
# What one answer may have: so much may come at once, after a second in which nothing did.
AT_ONCE = {"replica.fetch.max.bytes": "4000", "replica.fetch.response.max.bytes": "16000"}
BATCH = bytes(build_batch([bytes(1900)], timestamp_ms=1_700_000_000_000))


class Moving:
    """Partitions of brokers 1 to `leaders`, which are to get their only replica on the next one."""

    def __init__(self, leaders: int, partitions: int, records: int) -> None:
        self.world = Cluster(settings=AT_ONCE)
        self.leaders = range(1, leaders + 1)
        self.taker = leaders + 1
        self.count = partitions
        self.records = records
        self.brokers: dict[int, Broker] = {}

    async def begin(self) -> Client:
        for each in (*self.leaders, self.taker):
            self.brokers[each] = await self.world.started(each)
        places = {each: (1 + each % len(self.leaders),) for each in range(self.count)}
        path = znodes.TOPIC.path("clicks")
        await self.world.zks[1].create(path, TopicAssignment(places, None).encode())
        await self.world.until(
            lambda: (
                sum(len(each.service.replicas.partitions) for each in self.brokers.values())
                == self.count
            )
        )
        for number, (leader,) in places.items():
            client = await self.world.client(leader)
            for _ in range(self.records):
                part = ProducePartition(index=number, records=BATCH)
                topics = [ProduceTopic(name="clicks", partition_data=[part])]
                await client.send(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=topics), 9)
        return await self.world.client(1)

    async def move(self) -> None:
        targets = [(each, (self.taker,)) for each in range(self.count)]
        errors = (await move(self.world, 1, *targets))[1]
        assert not any(errors.values())

    def has(self) -> int:
        """How many bytes have come."""
        logs = self.brokers[self.taker].service.replicas.directory.logs
        return sum(
            segment.size
            for number in range(self.count)
            if (log := logs.get(TopicPartition("clicks", number))) is not None
            for segment in log.segments
        )

    async def watch(self) -> list[int]:
        """How many bytes have come by the end of each window."""
        came = []
        for _ in range(WINDOWS):
            await asyncio.sleep(2)
            came.append(self.has())
        return came


def check_rate(came: Sequence[int], rate: int, at_once: int, total: int) -> None:
    for first in range(WINDOWS):
        for last in range(first, WINDOWS):
            before = came[first - 1] if first else 0
            seconds = 2 * (last - first + 1)
            assert came[last] - before <= rate * seconds + at_once
    assert came[-1] >= min(total, 0.8 * rate * 2 * WINDOWS)


async def test_a_partition_moves_and_its_former_broker_has_no_log_of_it(cluster: Cluster) -> None:
    first = await cluster.started(1)
    second = await cluster.started(2)
    await cluster.started(3)
    await assign(cluster, 2)
    assert await move(cluster, 1, (0, (3, 1)), (7, (1,))) == (
        Error.NONE,
        {0: Error.NONE, 7: Error.UNKNOWN_TOPIC_OR_PARTITION},
    )
    await cluster.until(lambda: topic_of(cluster).partitions == {0: (3, 1)})
    await cluster.until(lambda: not topic_of(cluster).removed)
    assert await listed(cluster, 1) == {}
    assert CLICKS not in second.service.replicas.partitions
    assert CLICKS not in second.service.replicas.directory.logs
    assert first.service.replicas.partitions[CLICKS].adding == ()
    assert first.measures.controller.reassigning_partitions() == 0


async def test_moves_under_way_are_listed_and_cancelled_and_what_is_asked_twice_is_refused(
    cluster: Cluster,
) -> None:
    first = await cluster.started(1)
    await cluster.started(2)
    third = await cluster.started(3)
    await assign(cluster, 2, 1)
    await third.stop()
    await cluster.until(lambda: first.measures.controller.brokers() == 2)
    assert await move(cluster, 1, (0, (3, 2))) == (
        Error.NONE,
        {0: Error.INVALID_REPLICA_ASSIGNMENT},
    )
    third = await cluster.started(3)
    await cluster.until(lambda: first.measures.controller.brokers() == 3)
    third.service.replicas._fetchers.update = lambda _: None  # type: ignore[method-assign]
    assert await move(cluster, 1, (0, (3, 2))) == (Error.NONE, {0: Error.NONE})
    under_way = {0: ((3, 2, 1), (3,), (1,))}
    assert await listed(cluster, 1) == await listed(cluster, 1, 0, 5) == under_way
    assert await listed(cluster, 1, 5) == {}
    twice = await move(cluster, 1, (0, (1,)), (0, (2,)))
    assert twice == (Error.NONE, {0: Error.INVALID_REQUEST})
    for answer in (await move(cluster, 2, (0, (1,))), (await listed(cluster, 2), {})):
        assert answer == (Error.NOT_CONTROLLER, {})
    assert await move(cluster, 1, (0, None)) == (Error.NONE, {0: Error.NONE})
    assert topic_of(cluster).partitions == {0: (2, 1)}
    assert await move(cluster, 1, (0, None)) == (
        Error.NONE,
        {0: Error.NO_REASSIGNMENT_IN_PROGRESS},
    )


@pytest.mark.parametrize(
    ("leaders", "partitions", "records"),
    [(1, 24, 20), (3, 24, 20), (1, 250, 2)],
    ids=["one leader", "three leaders", "partitions that come at once"],
)
@pytest.mark.parametrize("side", ["follower", "leader"])
def test_a_throttled_side_keeps_its_rate_in_each_window(
    side: str, leaders: int, partitions: int, records: int
) -> None:
    moving = Moving(leaders, partitions, records)

    async def scenario() -> None:
        client = await moving.begin()
        limited = moving.leaders if side == "leader" else [moving.taker]
        rate = f"{side}.replication.throttled.rate"
        for each in limited:
            own = await moving.world.client(each)
            limit = (rate, SET, str(RATE))
            assert not (await change(own, limit, name=str(each), kind=BROKER)).error_code
        listed = (f"{side}.replication.throttled.replicas", SET, "*")
        assert not (await change(client, listed, name="clicks", kind=TOPIC)).error_code
        await asyncio.sleep(1)
        await moving.move()
        # A second's worth is made up for, and of each leader two answers may be on their way.
        sides = len(limited)
        at_once = sides * RATE + leaders * 2 * 16_000
        total = partitions * records * len(BATCH)
        check_rate(await moving.watch(), sides * RATE, at_once, total)

    moving.world.run(scenario())
