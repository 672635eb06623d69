"""A consumer that reads from the follower in its rack, in virtual time, while brokers go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kdist.client.consumer.aio import Consumer
from kdist.client.consumer.partition import Partition as Place
from kdist.config.replication import RACK_AWARE
from kdist.errors import ApiError
from kdist.model import TopicPartition
from tests.scenarios.test_scenarios_replicas import TOPIC, Stage
from tests.simulator.cluster import Cluster
from tests.unit.client.client_group_world import consumer_on

RACKS = {1: "a", 2: "b", 3: "c"}
KEY = TopicPartition(TOPIC, 0)
PROMPT_S = 0.1  # a follower's fetch waits five times as long at its leader


class Readers(Stage):
    """A cluster of three racks, with somebody who writes all the time, and a reader."""

    async def begin(self, **configs: str) -> None:
        await super().begin(**configs)
        replicas = next(iter(self.replicas().values())).replicas
        self.leader_id, self.other_id, self.near_id = replicas
        self.sent_s: list[float] = []  # when each offset was acknowledged; about
        self.found: list[tuple[int, bytes]] = []
        self.found_s: list[float] = []

    def read(self, rack_of: int, **settings: Any) -> Place:
        """Read from the beginning from now on, in that broker's rack."""
        settings = {"auto_offset_reset": "earliest", "retry_backoff_ms": 20} | settings
        self.consumer = consumer_on(self.cluster, "reader", client_rack=RACKS[rack_of], **settings)
        self.consumer.assign([KEY])
        self._reading = self.cluster.loop.create_task(self._read(self.consumer))
        return self.consumer._core.partitions[KEY]

    async def _read(self, consumer: Consumer) -> None:
        while True:
            for record in await consumer.poll(1):
                self.found.append((record.offset, record.value or b""))
                self.found_s.append(self.cluster.loop.time())

    async def write(self, count: int) -> None:
        """So many records, each again until it is acknowledged."""
        for _ in range(count):
            while True:
                try:
                    result = await self.send(b"%d" % len(self.sent_s))
                    if not result.error_code:
                        break
                except (ApiError, ValueError):  # nobody leads just now
                    pass
                await asyncio.sleep(0.05)
            self.sent_s.append(self.cluster.loop.time())
            await asyncio.sleep(0.03)

    async def all_is_found(self) -> None:
        """All that is acknowledged was read, in order, nothing skipped and nothing twice."""
        last = b"%d" % (len(self.sent_s) - 1)
        await self.cluster.until(lambda: self.found and self.found[-1][1] == last)
        assert not self._reading.done()
        assert [offset for offset, _ in self.found] == list(range(len(self.found)))
        values = [int(value) for _, value in self.found]
        assert sorted(values) == values  # a produce may have been written twice
        assert set(values) == set(range(len(self.sent_s)))


def play(scenario: Callable[[Readers], Awaitable[None]], seed: int = 0) -> None:
    cluster = Cluster(seed, settings={"replica.selector.class": RACK_AWARE})
    cluster.racks = RACKS

    async def run() -> None:
        stage = Readers(cluster)
        await stage.begin()
        await scenario(stage)

    cluster.run(run())


pytestmark = pytest.mark.played(by=play)


async def test_a_reader_in_a_followers_rack_gets_each_record_from_it_and_at_once(
    stage: Readers, /
) -> None:
    """Though this follower hears of no record that comes to tell it what is committed."""
    place = stage.read(stage.near_id)
    await stage.write(3)
    await stage.all_is_found()
    assert place.preferred_replica == stage.near_id
    for _ in range(5):
        await asyncio.sleep(1.37)
        await stage.write(1)
        await stage.all_is_found()
        assert stage.found_s[-1] - stage.sent_s[-1] < PROMPT_S
    assert place.preferred_replica == stage.near_id


async def test_a_reader_in_the_leaders_rack_or_in_nobodys_reads_from_the_leader(
    stage: Readers, /
) -> None:
    place = stage.read(stage.leader_id)
    await stage.write(3)
    await stage.all_is_found()
    assert place.preferred_replica is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_power_lost", [False, True])
def test_a_change_of_leader_costs_a_reader_of_a_follower_nothing(
    is_power_lost: bool, seed: int
) -> None:
    async def scenario(stage: Readers) -> None:
        place = stage.read(stage.near_id)
        await stage.write(5)
        writing = stage.cluster.loop.create_task(stage.write(60))
        await asyncio.sleep(0.5)
        dead = stage.cluster.brokers[stage.leader_id]
        stage.cluster.kill(dead, is_power_lost=is_power_lost)
        await writing
        await stage.all_is_found()
        assert stage.leader().id == stage.other_id
        assert place.preferred_replica == stage.near_id
        await stage.cluster.started(dead.id)
        await stage.write(5)
        await stage.all_is_found()

    play(scenario, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_reader_goes_on_when_its_follower_leads_and_when_that_dies(seed: int) -> None:
    async def scenario(stage: Readers) -> None:
        place = stage.read(stage.other_id)
        writing = stage.cluster.loop.create_task(stage.write(90))
        await stage.cluster.until(lambda: place.preferred_replica == stage.other_id)
        dead = stage.cluster.brokers[stage.leader_id]
        stage.cluster.kill(dead)
        await stage.cluster.until(lambda: place.preferred_replica is None and len(stage.found) > 30)
        assert stage.leader().id == stage.other_id
        await stage.cluster.started(dead.id)
        await stage.cluster.until(lambda: len(stage.replicas()[stage.other_id].state.isr) == 3)
        stage.cluster.kill(stage.cluster.brokers[stage.other_id])
        await writing
        await stage.all_is_found()

    play(scenario, seed)


async def test_a_reader_goes_on_at_the_leader_when_its_follower_dies_and_comes_back_to_it(
    stage: Readers, /
) -> None:
    place = stage.read(stage.near_id, metadata_max_age_ms=2_000)
    writing = stage.cluster.loop.create_task(stage.write(200))
    await stage.cluster.until(lambda: place.preferred_replica == stage.near_id)
    dead = stage.cluster.brokers[stage.near_id]
    stage.cluster.kill(dead)
    count = len(stage.found)
    await stage.cluster.until(lambda: len(stage.found) > count + 20)
    await stage.cluster.started(dead.id)
    await stage.cluster.until(lambda: place.preferred_replica == stage.near_id)
    await writing
    await stage.all_is_found()


async def test_a_reader_leaves_a_follower_that_gets_nothing_any_more(stage: Readers, /) -> None:
    """It asks the leader every `metadata_max_age_ms`, and the leader knows who is in sync."""
    place = stage.read(stage.near_id, metadata_max_age_ms=60_000)
    await stage.write(5)
    await stage.all_is_found()
    assert place.preferred_replica == stage.near_id
    for each in (stage.leader_id, stage.other_id):
        stage.cluster.network.block(f"m{stage.near_id}", f"m{each}")
        stage.cluster.network.block(f"m{each}", f"m{stage.near_id}")
    await asyncio.sleep(50)
    await stage.write(5)
    await stage.all_is_found()
    assert place.preferred_replica is None
