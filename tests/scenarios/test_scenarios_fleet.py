"""Hosts of twelve brokers each, in virtual time: a host's loss is one event (design R10).

The whole of it, 48 brokers with 5,000 partitions, is for `make stress`; otherwise it is a quarter
of the brokers and a tenth of the partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import pytest

from kdist.broker.broker import Broker
from kdist.client.admin.clients import AsyncAdmin
from kdist.replication.partition import Partition
from tests.simulator.cluster import PORT, Cluster

HOSTS = 4
SESSION_S = 6.0
PARTITIONS_OF_A_TOPIC = 100
STEP_S = 0.02


class Fleet:
    """Brokers that are spread over four hosts in two racks, and partitions of three replicas."""

    def __init__(self, brokers: int, partitions: int) -> None:
        self.cluster = Cluster(7)
        self.ids = range(1, brokers + 1)
        self.partitions = partitions

    async def begin(self) -> None:
        await self.start(self.ids)
        network = self.cluster.network.host("operator")
        async with AsyncAdmin(
            [f"m{each}:{PORT}" for each in self.ids],
            network=network,
            request_timeout_ms=60_000,
            default_api_timeout_ms=120_000,
        ) as admin:
            for number in range(self.partitions // PARTITIONS_OF_A_TOPIC):
                settings = {"min.insync.replicas": "2"}
                await admin.create_topic(f"t{number}", PARTITIONS_OF_A_TOPIC, 3, settings)
        await self.until(lambda: len(list(self.replicas())) == 3 * self.partitions)

    async def start(self, broker_ids: Iterable[int]) -> None:
        """Start brokers, all at once."""
        brokers = [
            self.cluster.broker(each, broker_host=f"h{each % HOSTS}", broker_rack=f"r{each % 2}")
            for each in broker_ids
        ]
        await asyncio.gather(*(each.start() for each in brokers))

    def alive(self) -> list[Broker]:
        processes, brokers = self.cluster.processes, self.cluster.brokers.values()
        return [each for each in brokers if not processes[each.id]._is_killed]

    def replicas(self) -> Iterable[Partition]:
        for broker in self.alive():
            if broker._service is not None:
                yield from broker.service.replicas.partitions.values()

    def leading(self) -> list[Partition]:
        return [each for each in self.replicas() if each.is_leader]

    def on_host(self, number: int) -> list[Broker]:
        return [each for each in self.cluster.brokers.values() if each.id % HOSTS == number]

    async def until(self, condition: Callable[[], bool], limit_s: float = 60.0) -> float:
        """How long it takes until the condition holds."""
        loop = self.cluster.loop
        begun_s = loop.time()
        while not condition():
            assert loop.time() < begun_s + limit_s, "it did not happen in time"
            await asyncio.sleep(STEP_S)
        return loop.time() - begun_s

    async def until_led(self) -> float:
        return await self.until(lambda: len(self.leading()) == self.partitions)

    async def until_whole(self) -> float:
        return await self.until(
            lambda: sum(len(each.state.isr) == 3 for each in self.leading()) == self.partitions
        )

    def controller(self) -> Broker:
        (found,) = (each for each in self.alive() if each.service.controller.is_active)
        return found


SIZES = [
    pytest.param(12, 500),
    pytest.param(48, 5_000, marks=(pytest.mark.stress, pytest.mark.timeout(900))),
]


def play(fleet: Fleet, scenario: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await fleet.begin()
        await scenario()

    fleet.cluster.run(run())


@pytest.mark.parametrize(("brokers", "partitions"), SIZES)
def test_a_hosts_loss_is_one_event_and_its_return_another(brokers: int, partitions: int) -> None:
    fleet = Fleet(brokers, partitions)

    async def scenario() -> None:
        elsewhere = next(each for each in range(HOSTS) if fleet.controller().id % HOSTS != each)
        lost = fleet.on_host(elsewhere)
        epoch_before = fleet.controller().measures.controller.epoch
        for each in lost:
            fleet.cluster.kill(each, is_power_lost=True)
        assert await fleet.until_led() < SESSION_S + 1
        assert {len(each.state.isr) for each in fleet.leading()} == {2, 3}
        assert fleet.controller().measures.controller.epoch == epoch_before
        await fleet.start(each.id for each in lost)
        assert await fleet.until_whole() < 5

    play(fleet, scenario)


@pytest.mark.parametrize(("brokers", "partitions"), SIZES)
def test_the_controllers_host_may_be_lost_too(brokers: int, partitions: int) -> None:
    fleet = Fleet(brokers, partitions)

    async def scenario() -> None:
        lost = fleet.on_host(fleet.controller().id % HOSTS)
        for each in lost:
            fleet.cluster.kill(each)
        assert await fleet.until_led() < SESSION_S + 3
        await fleet.start(each.id for each in lost)
        assert await fleet.until_whole() < 5

    play(fleet, scenario)


@pytest.mark.parametrize(("brokers", "partitions"), SIZES)
def test_a_rolling_restart_host_by_host_leaves_no_partition_without_a_leader(
    brokers: int, partitions: int
) -> None:
    fleet = Fleet(brokers, partitions)

    async def scenario() -> None:
        for number in range(HOSTS):
            stopped = fleet.on_host(number)
            await asyncio.gather(*(each.stop() for each in stopped))
            gone = {each.id for each in stopped}
            led = [each for each in fleet.leading() if each._context.broker_id not in gone]
            assert len(led) == partitions
            await fleet.start(sorted(gone))
            assert await fleet.until_whole() < 5

    play(fleet, scenario)
