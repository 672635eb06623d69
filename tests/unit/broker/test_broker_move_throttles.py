"""Moves under a throttle, on whole brokers: in each window of time no more comes than the rate."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kdist.broker.broker import Broker
from kdist.model import TopicPartition
from kdist.network.client import Client
from kdist.protocol.describe_configs import BROKER, TOPIC
from kdist.protocol.incremental_alter_configs import SET
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.records.build import build_batch
from kdist.zk import znodes
from kdist.zk.topic_values import TopicAssignment
from tests.simulator.cluster import Cluster
from tests.unit.broker.broker_configs import change
from tests.unit.broker.test_broker_reassignments import move

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
