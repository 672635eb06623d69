"""Each client says when it loses brokers, and when they are back, and nothing in between."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest

from kdist.client.admin.clients import AsyncAdmin
from kdist.client.admin.topics import NewTopic, create_topics
from kdist.client.cluster import Address, NoBroker
from kdist.client.cluster import Cluster as Asking
from kdist.client.producer.asynchronous import AsyncProducer
from kdist.client.producer.core import ProducerContext
from kdist.errors import ApiError
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from tests.simulator.cluster import PORT, Cluster
from tests.unit.client.client_group_world import consumer_on

SERVERS = f"m1:{PORT},m2:{PORT}"
AWAY_S = 60
Use = Callable[[], Awaitable[object]]


def producing(cluster: Cluster) -> tuple[Use, Use]:
    """A use of a client, again and again, and its end."""
    context = ProducerContext(cluster.network.host("user"), cluster.clock, cluster.rng)
    producer = AsyncProducer(SERVERS, context=context)

    async def use() -> None:
        if producer._core is None:
            await producer.start()
        for number in range(2):
            await producer.send("led", b"", partition=number)
        await asyncio.sleep(0.5)

    return use, producer.close


def consuming(cluster: Cluster) -> tuple[Use, Use]:
    consumer = consumer_on(cluster, "user", auto_offset_reset="earliest")
    consumer.assign([TopicPartition("led", 0), TopicPartition("led", 1)])
    return lambda: consumer.poll(0.5), consumer.close


def administering(cluster: Cluster) -> tuple[Use, Use]:
    admin = AsyncAdmin(SERVERS, network=cluster.network.host("user"), default_api_timeout_ms=1_000)

    async def use() -> None:
        if admin._cluster is None:
            await admin.start()
        await admin.describe_log_dirs()
        await asyncio.sleep(0.5)

    return use, admin.close


async def seen(
    cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
    using: Callable[[Cluster], tuple[Use, Use]],
    away: list[int],
) -> list[str]:
    """What a client logs while these brokers are away and come back, without reasons."""
    for broker in (1, 2):
        await cluster.started(broker)
    network = cluster.network.host("admin")
    asking = Asking(network, [Address("m1", PORT)], ClientSettings("admin"))
    await create_topics(asking, [NewTopic("led", replicas=[[1], [2]])])
    await asking.led([TopicPartition("led", 0), TopicPartition("led", 1)])
    asking.close()
    use, end = using(cluster)

    async def use_for(seconds: float) -> None:
        end_s = cluster.loop.time() + seconds
        while cluster.loop.time() < end_s:
            try:
                await use()
            except (ApiError, NoBroker):
                await asyncio.sleep(0.5)

    await use_for(5)
    caplog.clear()
    for broker in away:
        cluster.kill(cluster.brokers[broker])
    await use_for(AWAY_S)
    for broker in away:
        await cluster.started(broker)
    await use_for(40)
    told = [each.message for each in caplog.records if each.name == "kdist.client.outages"]
    await end()
    return [re.sub(r": .*", "", each) for each in told]


def seconds(told: str) -> int:
    """How long something was away."""
    return int(told.removesuffix(" s").rpartition(" ")[2])


@pytest.mark.parametrize("using", [producing, consuming, administering])
async def test_the_loss_of_a_broker_in_use_is_told_once_and_its_return_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, using: Callable[[Cluster], tuple[Use, Use]]
) -> None:
    lost, back = await seen(cluster, caplog, using, [2])
    assert lost == f"broker m2:{PORT} is lost"
    assert back.startswith(f"broker m2:{PORT} is back after")
    assert AWAY_S - 5 < seconds(back) < AWAY_S + 20


@pytest.mark.parametrize("using", [producing, consuming, administering])
async def test_the_loss_of_all_brokers_is_told_once_and_their_return_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, using: Callable[[Cluster], tuple[Use, Use]]
) -> None:
    *single, lost, back = await seen(cluster, caplog, using, [1, 2])
    assert set(single) <= {f"broker m{number}:{PORT} is lost" for number in (1, 2)}
    assert len(single) <= 2
    assert lost == "the cluster is lost"
    assert back.startswith("the cluster is back after")
    assert AWAY_S - 5 < seconds(back) < AWAY_S + 20
