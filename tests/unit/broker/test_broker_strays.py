"""Stray logs, which belong to no partition of the cluster: reported once at a start, and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kdist.broker.broker import Broker
from kdist.zk import znodes
from kdist.zk.memory import MemoryZooKeeper
from tests.simulator.cluster import Cluster, create, produce

SHORT = {"log_retention_ms": "1000", "log_retention_check_interval_ms": "500"}


async def remove(zk: MemoryZooKeeper, path: str) -> None:
    for name in await zk.children(path):
        await remove(zk, f"{path}/{name}")
    await zk.delete(path)


async def damage(zk: MemoryZooKeeper, path: str) -> None:
    await zk.set(path, b"no JSON")


async def started_without(
    cluster: Cluster, topic: str, how: Callable[[MemoryZooKeeper, str], Awaitable[None]] = remove
) -> Broker:
    """A broker that comes back to a ZooKeeper where somebody has removed a topic, say."""
    broker = await cluster.started()
    client = await cluster.client()
    for name in ("clicks", topic):
        assert (await create(client, name, 2)).error_code == 0
        assert (await produce(client, name, b"v")).error_code == 0
    await broker.stop()
    zk = cluster.ensemble.client()
    await zk.connect()
    await how(zk, znodes.TOPIC.path(topic))
    return await cluster.started(**SHORT)


def test_logs_of_unknown_topics_are_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await started_without(cluster, "gone")
        await asyncio.sleep(600)

    cluster.run(scenario())
    (told,) = [each.getMessage() for each in caplog.records if "gone-" in each.getMessage()]
    assert told.startswith(
        "2 logs in /d are of no partition of the cluster, and are kept: gone-0, gone-1"
    )
    assert "clicks" not in told


def test_logs_of_a_topic_whose_znode_cannot_be_read_are_not_called_stray(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An operator might delete them, and repair the topic's znode afterwards."""
    cluster = Cluster()

    async def scenario() -> None:
        await started_without(cluster, "broken", damage)
        await asyncio.sleep(600)

    cluster.run(scenario())
    assert "no partition of the cluster" not in caplog.text


def test_nothing_is_reported_where_the_cluster_knows_all_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        assert (await create(await cluster.client(), "clicks", 2)).error_code == 0
        await broker.stop()
        await cluster.started()
        await asyncio.sleep(600)

    cluster.run(scenario())
    assert "no partition of the cluster" not in caplog.text


def test_retention_leaves_logs_of_unknown_topics_alone() -> None:
    """Their topics' retention is unknown too."""
    cluster = Cluster()

    async def scenario() -> None:
        broker = await started_without(cluster, "gone")
        await asyncio.sleep(600)
        ends = {str(key): log.start_offset for key, log in broker.service.directory.logs.items()}
        assert ends == {"clicks-0": 1, "clicks-1": 0, "gone-0": 0, "gone-1": 0}

    cluster.run(scenario())
