"""Which partitions records without a key go to, while brokers are frozen, away or slow."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest

from kdist.client.producer.results import Sent
from kdist.errors import Error
from kdist.model import NO_LEADER, TopicPartition
from kdist.records.batch import BatchHeader
from tests.examples import first_of
from tests.unit.client.producer_world import FINE, Fault, Scene, play

pytestmark = pytest.mark.played(by=play, hosts=3, partitions=3)

FROZEN_S = 15.0


def freeze(scene: Scene, partition: int, until_s: float) -> None:
    """Answer nothing for this partition until then, as a stopped process does."""

    def fault(key: TopicPartition, _: BatchHeader) -> Fault:
        delay_s = until_s - scene.brokers.loop.time()
        return Fault(delay_s=delay_s) if key.partition == partition and delay_s > 0 else FINE

    scene.brokers.fault = fault


@pytest.mark.parametrize("partitioner", ["sticky", "round_robin"])
@pytest.mark.parametrize("seed", first_of(range(8), 2))
def test_records_without_a_key_leave_a_frozen_broker(seed: int, partitioner: Any) -> None:
    """Of 739, 723 went to it, and waited until it answered again."""

    async def work(scene: Scene) -> None:
        loop = scene.brokers.loop
        async with scene.producer(partitioner=partitioner) as producer:
            for partition in range(3):
                await producer.send_and_wait("t", b"0", partition=partition)
            begun_s = loop.time()
            freeze(scene, 1, begun_s + FROZEN_S)
            sent: list[Sent] = []
            took_s: dict[Sent, float] = {}

            def note(begun_s: float, each: Sent) -> None:
                took_s[each] = loop.time() - begun_s

            while loop.time() < begun_s + FROZEN_S - 2.5:
                sent.append(await producer.send("t", b"a"))
                sent[-1].add_done_callback(partial(note, loop.time()))
                await asyncio.sleep(0.02)
            late = sent[150:]  # after three seconds
            await producer.flush()
            assert sum(each < 2.005 for each in took_s.values()) >= 0.9 * len(sent)
            places = Counter([(await each).partition for each in late])
            assert places[1] == 0
            assert min(places[0], places[2]) > 100

            sent = []
            for _ in range(200):
                sent.append(await producer.send("t", b"a"))
                await asyncio.sleep(0.02)
            places = Counter([(await each).partition for each in sent])
            assert min(places[number] for number in range(3)) > 20  # it is back

    play(work, hosts=3, partitions=3, seed=seed)


@pytest.mark.parametrize("partitioner", ["sticky", "round_robin"])
async def test_records_without_a_key_leave_a_partition_that_loses_its_leader(
    scene: Scene, /, partitioner: Any
) -> None:
    async with scene.producer(partitioner=partitioner, linger_ms=0) as producer:
        for _ in range(9):
            await producer.send_and_wait("t", b"0")
        scene.brokers.leaders[TopicPartition("t", 1)] = NO_LEADER
        producer._started._metadata.want(["t"])
        await asyncio.sleep(1)
        sent = [await producer.send_and_wait("t", b"a") for _ in range(50)]
        assert {each.partition for each in sent} == {0, 2}
        many = await (await producer.send_many("t", [b"a"] * 50))
        assert 1 not in many
        scene.brokers.leaders[TopicPartition("t", 1)] = 1
        producer._started._metadata.want(["t"])
        await asyncio.sleep(2)
        sent = [await producer.send_and_wait("t", b"a") for _ in range(50)]
        assert {each.partition for each in sent} == {0, 1, 2}


async def test_records_without_a_key_leave_a_partition_whose_batches_come_back(
    scene: Scene, /
) -> None:
    refusing = Fault(is_written=False, error=Error.NOT_ENOUGH_REPLICAS)
    scene.brokers.fault = lambda key, _: refusing if key.partition == 1 else FINE
    async with scene.producer(linger_ms=5) as producer:
        sent = []
        for _ in range(200):
            sent.append(await producer.send("t", b"a"))
            await asyncio.sleep(0.02)
        assert sum(each.done() for each in sent) > 180
        scene.brokers.fault = lambda *_: FINE


async def test_a_slower_broker_gets_fewer_records_without_a_key(scene: Scene, /) -> None:
    slow = Fault(delay_s=0.2)
    scene.brokers.fault = lambda key, _: slow if key.partition == 1 else FINE
    async with scene.producer(linger_ms=0) as producer:
        sent = []
        for _ in range(500):
            sent.append(await producer.send("t", b"a"))
            await asyncio.sleep(0.005)
        places = Counter([(await each).partition for each in sent])
    assert 0 < places[1] < min(places[0], places[2]) / 2


async def test_while_no_broker_can_be_sent_to_records_stay_where_they_are(scene: Scene, /) -> None:
    scene.brokers.fault = lambda *_: Fault(delay_s=5)
    async with scene.producer(linger_ms=0, max_in_flight_requests_per_connection=1) as producer:
        sent = []
        for _ in range(400):
            sent.append(await producer.send("t", b"a"))
            await asyncio.sleep(0.01)
        await producer.flush()
    batches = sum(len(kept.batches) for kept in scene.brokers.kept.values())
    assert batches <= 6
