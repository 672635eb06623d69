"""A broker that starts while ZooKeeper is unavailable at times."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kdist.broker.broker import State
from kdist.errors import UserError
from kdist.zk import znodes
from tests.simulator.cluster import Cluster, create, produce

MOMENTS_MS = range(1, 160, 3)  # of a start that takes 110 ms to its registration
LIMIT = {"zookeeper_connection_timeout_ms": "10000"}


@pytest.mark.parametrize("moment_ms", MOMENTS_MS)
def test_a_start_resumes_when_zookeeper_is_back(moment_ms: int) -> None:
    cluster = Cluster(seed=moment_ms)

    async def scenario() -> None:
        broker = cluster.broker(**LIMIT)
        starting = cluster.loop.create_task(broker.start())
        await asyncio.sleep(moment_ms / 1000)
        cluster.ensemble.stop()
        await asyncio.sleep(4)
        cluster.ensemble.start()
        await starting
        assert broker.state is State.READY
        client = await cluster.client()
        assert (await create(client, "clicks")).error_code == 0
        assert (await produce(client, "clicks", b"x")).error_code == 0

    cluster.run(scenario())


@pytest.mark.parametrize("moment_ms", MOMENTS_MS)
def test_a_start_resumes_in_a_new_session_when_its_own_has_expired(moment_ms: int) -> None:
    cluster = Cluster(seed=moment_ms)

    async def scenario() -> None:
        broker = cluster.broker(**LIMIT)
        starting = cluster.loop.create_task(broker.start())
        await asyncio.sleep(moment_ms / 1000)
        cluster.ensemble.expire(cluster.zks[1])
        await starting
        path = znodes.BROKER.path(1)
        await cluster.until(lambda: cluster.ensemble.tree.exists(path))
        await cluster.until(lambda: broker.service.controller.is_active)
        assert (await create(await cluster.client(), "clicks")).error_code == 0

    cluster.run(scenario())


@pytest.mark.parametrize("moment_ms", range(2, 110, 12))
def test_a_zookeeper_that_does_not_come_back_ends_the_start(
    moment_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(seed=moment_ms)

    async def scenario() -> None:
        broker = cluster.broker(**LIMIT)
        starting = cluster.loop.create_task(broker.start())
        await asyncio.sleep(moment_ms / 1000)
        cluster.ensemble.stop()
        before_s = cluster.loop.time()
        with pytest.raises(UserError, match="ZooKeeper on memory: "):
            await starting
        assert 10 <= cluster.loop.time() - before_s < 25
        assert broker.state is State.STOPPED

    with caplog.at_level(logging.WARNING):
        cluster.run(scenario())
    said = [each.message for each in caplog.records if "while the broker starts" in each.message]
    assert said or moment_ms < 10  # before there is a session, connecting itself takes the time
