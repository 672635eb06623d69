"""The canary against brokers that come and go: what it creates, measures and counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kdist.agent.canary import Canary, led_by
from kdist.client.cluster import Address, Cluster
from kdist.config.agent import load_agent
from kdist.network.client import ClientSettings
from kdist.protocol.metadata import MetadataBroker, MetadataResponse
from tests.simulator.cluster import PORT
from tests.simulator.cluster import Cluster as Simulated

TOPIC = "kdist.canary"


class Host:
    """A host with a canary, beside simulated brokers."""

    def __init__(self, simulated: Simulated) -> None:
        given = f"bootstrap.servers=m1:{PORT}\nagent.canary.topic={TOPIC}\n"
        settings = load_agent(given, "x")
        self.simulated = simulated
        network = simulated.network.host("monitor")
        client = ClientSettings("canary", request_timeout_ms=5_000)
        timeout_ms = settings.canary_timeout_ms
        self.cluster = Cluster(network, [Address("m1", PORT)], client, timeout_ms)
        self.canary = Canary(self.cluster, settings, simulated.clock)

    async def run_until(self, condition: Callable[[], object]) -> None:
        running = asyncio.create_task(self.canary.run())
        await self.simulated.until(lambda: condition() or running.done())
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert condition()

    def probes(self, broker: int) -> tuple[int, int]:
        """How many succeeded, and how many failed."""
        found = self.canary.metrics.get((str(broker),))
        return (
            (0, 0) if found is None else (found.probes - found.failed_probes, found.failed_probes)
        )


def run(scenario: Callable[[Simulated], Any]) -> None:
    simulated = Simulated()
    simulated.run(scenario(simulated))


def test_every_broker_is_probed_through_a_partition_that_it_leads() -> None:
    async def scenario(simulated: Simulated) -> None:
        brokers = [await simulated.started(number) for number in (1, 2, 3)]
        host = Host(simulated)
        await host.run_until(lambda: all(host.probes(each.id)[0] >= 2 for each in brokers))
        partitions = host.canary._partitions
        assert set(partitions) == {1, 2, 3}
        for broker, partition in partitions.items():
            assert host.cluster.leaders[partition] == broker
            assert host.probes(broker)[1] == 0
            seconds = host.canary.metrics[str(broker),].seconds
            assert seconds.count == host.probes(broker)[0]
            assert 0 < seconds.sum < 5

    run(scenario)


def test_a_broker_that_joins_gets_a_partition() -> None:
    async def scenario(simulated: Simulated) -> None:
        await simulated.started(1)
        host = Host(simulated)
        await host.run_until(lambda: host.probes(1)[0])
        await simulated.started(2)
        await host.run_until(lambda: host.probes(2)[0])
        assert len((await host.cluster.metadata([TOPIC])).topics[0].partitions) == 2

    run(scenario)


def test_a_broker_that_is_down_fails_and_comes_back() -> None:
    async def scenario(simulated: Simulated) -> None:
        await simulated.started(1)
        second = await simulated.started(2)
        host = Host(simulated)
        await host.run_until(lambda: host.probes(2)[0])
        await second.stop()
        before = host.probes(1)[0]
        await host.run_until(lambda: host.probes(2)[1] >= 2)
        assert host.probes(1)[0] > before
        assert host.probes(1)[1] == 0
        await simulated.started(2)
        after = host.probes(2)[0]
        await host.run_until(lambda: host.probes(2)[0] > after)

    run(scenario)


def broker(number: int, host: str, rack: str) -> MetadataBroker:
    return MetadataBroker(node_id=number, host=host, port=9092, rack=rack)


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_a_new_partitions_first_replica_is_the_broker_it_is_for(factor: int) -> None:
    brokers = [broker(n, f"b{n // 2}", f"r{n // 4}") for n in range(12)]
    known = MetadataResponse(brokers=brokers, topics=[])
    for leader, replicas in zip((3, 7), led_by(known, [3, 7], factor), strict=True):
        assert replicas[0] == leader
        assert len({each // 2 for each in replicas}) == factor
        assert len({each // 4 for each in replicas}) == factor
