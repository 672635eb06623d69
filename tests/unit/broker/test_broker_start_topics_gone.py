"""Committed offsets of topics that are deleted, or removed from ZooKeeper by hand."""

from __future__ import annotations

import asyncio

import pytest

from kdist.errors import Error
from kdist.network.client import Client
from kdist.protocol.delete_topics import DeleteTopicsRequest
from kdist.zk.client import Create, Delete
from kdist.zk.memory import MemoryZooKeeper
from tests.simulator.cluster import Cluster, create, produce
from tests.unit.broker.test_broker_metadata import ask
from tests.unit.broker.test_broker_start_groups import (
    commit,
    committed,
    committed_after_start,
    run,
    with_offsets_topic,
)

ROOT = "/brokers/topics/clicks"
PATHS = (ROOT, f"{ROOT}/partitions", f"{ROOT}/partitions/0", f"{ROOT}/partitions/0/state")


async def with_a_commit(cluster: Cluster) -> Client:
    """A client of a broker with a topic, and a group that has committed 5 for it."""
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    await with_offsets_topic(cluster, broker)
    assert await commit(client, "g", 5) == 0
    return client


async def remove(zk: MemoryZooKeeper) -> list[bytes]:
    """Remove the topic's znodes by hand; returns what they held."""
    held = [(await zk.get(path)).data for path in PATHS]
    await zk.multi([Delete(path) for path in reversed(PATHS)])
    return held


async def is_known(client: Client) -> bool:
    (told,) = (await ask(client, 9, "clicks", allow_auto_topic_creation=False)).topics
    return bool(told.error_code == 0)


async def until_known(client: Client, wanted: bool) -> None:
    while await is_known(client) is not wanted:
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("is_elected_meanwhile", [False, True])
def test_a_topic_removed_from_zookeeper_by_hand_is_served_again_when_restored(
    is_elected_meanwhile: bool,
) -> None:
    """Meanwhile no record is accepted that could be lost, and no group loses its offsets."""

    async def scenario(cluster: Cluster) -> None:
        client = await with_a_commit(cluster)
        assert (await produce(client, "clicks", b"x")).base_offset == 0
        zk = cluster.zks[1]
        held = await remove(zk)
        if is_elected_meanwhile:
            await zk.delete("/controller")
        await until_known(client, False)
        assert (await produce(client, "clicks", b"x")).error_code == Error.NOT_LEADER_OR_FOLLOWER
        assert await committed(client, "g") == (0, 5)
        await zk.multi([Create(path, each) for path, each in zip(PATHS, held, strict=True)])
        await until_known(client, True)
        assert (await produce(client, "clicks", b"x")).base_offset == 1
        await cluster.brokers[1].stop()
        assert await committed_after_start(cluster) == (0, 5)

    run(scenario)


def test_a_topic_removed_by_hand_and_recreated_has_no_committed_offsets() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = await with_a_commit(cluster)
        await remove(cluster.zks[1])
        await until_known(client, False)
        await cluster.zks[1].delete("/config/topics/clicks")
        assert (await create(client, "clicks")).error_code == 0
        assert await committed(client, "g") == (0, -1)
        await cluster.brokers[1].stop()
        assert await committed_after_start(cluster) == (0, -1)

    run(scenario)


@pytest.mark.parametrize("records", [0, pytest.param(2_000, marks=pytest.mark.slow)])
def test_a_deletion_that_waits_for_a_broker_removes_the_commits_on_it_too(
    records: int,
) -> None:
    """It is still loading its groups, which may take long, when it hears of the deletion."""

    async def scenario(cluster: Cluster) -> None:
        client = await with_a_commit(cluster)  # all is on the one broker that there is yet
        for number in range(records):
            assert await commit(client, f"g{number % 9}", number, "m" * 1200) == 0
        await cluster.started(2)
        await cluster.brokers[1].stop()
        far = await cluster.client(2)
        await cluster.until(lambda: cluster.brokers[2].service.controller.is_active)
        answer = await far.send(DeleteTopicsRequest(topic_names=["clicks"], timeout_ms=1_000), 1)
        assert answer.responses[0].error_code == 0
        assert await committed_after_start(cluster) == (0, -1)
        while (await create(far, "clicks")).error_code == Error.TOPIC_ALREADY_EXISTS:
            await asyncio.sleep(0.1)
        assert await committed(await cluster.client(), "g") == (0, -1)
        await cluster.brokers[1].stop()
        assert await committed_after_start(cluster) == (0, -1)

    run(scenario)
