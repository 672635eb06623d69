"""Thousands of partitions over a slow link: how long a first start and a look at the lag take."""

from __future__ import annotations

import asyncio

import pytest
from flow_world import FlowScene, flow_of, play

from kdist.client.cluster import Address, Cluster
from kdist.config.mirror import Flow
from kdist.errors import ApiError, Error
from kdist.mirror.joined import Joined
from kdist.mirror.status import flow_status
from kdist.mirror.stream import State
from kdist.network.client import ClientSettings
from kdist.network.simulated_transport import Conditions
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from tests.simulator.cluster import PORT, create, records

DELAY_MS = 50.0
PATIENCE_S = 30  # one after the other, the first commits alone take 200 s at 2,000 partitions


@pytest.mark.parametrize(
    "count", [300, pytest.param(2_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_many_partitions_begin_and_show_their_lag_over_a_slow_link(count: int) -> None:
    async def work(scene: FlowScene) -> None:
        loop = scene.cluster.loop
        await create(scene.client, "t", partitions=count)
        parts = [ProducePartition(index=n, records=records(b"1")) for n in range(count)]
        topics = [ProduceTopic(name="t", partition_data=parts)]
        await scene.client.send(ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=topics), 9)
        scene.cluster.network.conditions = Conditions(delay_ms_max=DELAY_MS, cut_share=0.0)
        mirror = scene.start()
        flow = flow_of(mirror)
        begun_s = loop.time()
        await scene.cluster.until(lambda: len(flow.streams) == count)
        while not all(each.state is State.FLOWING for each in flow.streams.values()):
            assert loop.time() - begun_s < PATIENCE_S
            await asyncio.sleep(0.1)
        assert flow.metrics.doubts == 0
        await asyncio.sleep(5)
        assert mirror._health_page().status == 200
        await scene.stop()

        network = scene.cluster.network.host("asking")
        cluster = Cluster(network, [Address("m1", PORT)], ClientSettings("c"))
        asked_s = loop.time()
        unknown = Flow("unknown", flow.flow.settings)
        found = await flow_status(unknown, cluster, cluster, scene.cluster.clock.now_ms())
        assert [each.lag.records for each in found.partitions] == [1] * count
        assert loop.time() - asked_s < PATIENCE_S
        cluster.close()

    play(work)


def test_calls_that_come_meanwhile_are_one_call() -> None:
    calls: list[dict[str, int]] = []

    async def call(items: dict[str, int]) -> dict[str, int]:
        calls.append(items)
        await asyncio.sleep(0)
        if "bad" in items:
            raise ApiError(Error.NOT_COORDINATOR)
        return items

    async def work() -> None:
        joined = Joined(call)
        first = asyncio.create_task(joined({"a": 1}))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        others = [asyncio.create_task(joined({name: 2})) for name in ("b", "c", "b")]
        others[0].cancel()
        assert await first == {"a": 1}
        assert await others[1] == await others[2] == {"b": 2, "c": 2}
        failed = await asyncio.gather(joined({"bad": 1}), joined({"d": 1}), return_exceptions=True)
        assert [type(each) for each in failed] == [ApiError, ApiError]
        assert await joined({"e": 1}) == {"e": 1}

    asyncio.run(work())
    assert calls == [{"a": 1}, {"b": 2, "c": 2}, {"bad": 1, "d": 1}, {"e": 1}]
