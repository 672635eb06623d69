"""What tools and people put below /admin and /config/changes, whatever it is, harms no broker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kdist.broker.broker import Broker
from kdist.zk import znodes
from tests.simulator.cluster import Cluster, create

LARGE = 99_999_999_999


def request(*partitions: object) -> bytes:
    return json.dumps({"version": 1, "partitions": partitions}).encode()


def entry(partition: object = 0, replicas: object = (1,), topic: object = "clicks") -> object:
    return {"topic": topic, "partition": partition, "replicas": replicas}


ODD = {
    "no data": b"",
    "no JSON": b"{",
    "no UTF-8": b"\xff\xfe",
    "no object": b"[]",
    "no partitions": b'{"version":1}',
    "none": request(),
    "a later version's": b'{"version":9,"partitions":[]}',
    "no number": request(entry("0")),
    "a boolean": request(entry(partition=True)),
    "large numbers": request(entry(LARGE, (LARGE,))),
    "a large replica": request(entry(0, (LARGE,))),
    "a negative one": request(entry(-1, (-1,))),
    "no replicas": request(entry(0, ())),
    "null replicas": request(entry(0, None)),
    "twice the same": request(entry(0, (1,)), entry(0, (1,))),
    "no such topic": request(entry(topic="nowhere")),
    "an impossible topic": request(entry(topic="../x")),
    "entries of no kind": request(None, 7, "x"),
    "deep": b"[" * 100_000,
}


async def with_topic(cluster: Cluster) -> Broker:
    broker = await cluster.started()
    await create(await cluster.client(), "clicks", 2)
    return broker


async def until_gone(broker: Broker, path: str) -> None:
    async with asyncio.timeout(120):
        while await broker.context.zk.exists(path) is not None:
            await asyncio.sleep(0.05)


def is_unharmed(broker: Broker, term: object) -> bool:
    metrics = broker.measures.controller
    return broker.service.controller._term is term and metrics.crashed == 0


@pytest.mark.parametrize("row", [znodes.REASSIGNMENT, znodes.PREFERRED_ELECTION])
@pytest.mark.parametrize("data", ODD.values(), ids=ODD)
async def test_an_old_tools_request_goes_away_whatever_it_says(
    cluster: Cluster, row: Any, data: bytes
) -> None:
    broker = await with_topic(cluster)
    zk, term = broker.context.zk, broker.service.controller._term
    for _ in range(2):
        await zk.create(row.path(), data)
        await until_gone(broker, row.path())
    assert is_unharmed(broker, term)


@pytest.mark.parametrize("data", [ODD["none"], ODD["no data"]])
async def test_a_request_that_is_there_when_a_controller_is_elected_goes_away_too(
    cluster: Cluster, data: bytes
) -> None:
    broker = await with_topic(cluster)
    zk, path = broker.context.zk, znodes.REASSIGNMENT.path()
    await zk.delete(znodes.CONTROLLER.path())
    await zk.create(path, data)
    await until_gone(broker, path)
    assert broker.measures.controller.crashed == 0


@pytest.mark.parametrize("row", [znodes.REASSIGNMENT, znodes.PREFERRED_ELECTION])
async def test_a_request_with_znodes_below_it_stays_and_ends_no_term(
    cluster: Cluster, row: Any
) -> None:
    broker = await with_topic(cluster)
    zk, term = broker.context.zk, broker.service.controller._term
    await zk.create(f"{row.path()}/below", request(), make_parents=True)
    await create(await cluster.client(), "later")
    assert await zk.exists(row.path()) is not None
    assert is_unharmed(broker, term)


async def test_a_deletion_of_no_topic_is_withdrawn_and_one_with_znodes_below_it_ends_no_term(
    cluster: Cluster,
) -> None:
    broker = await with_topic(cluster)
    zk, term = broker.context.zk, broker.service.controller._term
    odd = ("ghost", "with spaces", "%2E%2E", "\u00fcmlaut", "x" * 300)
    await zk.create("/admin/delete_topics/stays/below", make_parents=True)
    for name in odd:
        await zk.create(f"/admin/delete_topics/{name}", b"whatever")
    for name in odd:
        await until_gone(broker, f"/admin/delete_topics/{name}")
    await create(await cluster.client(), "later")
    assert is_unharmed(broker, term)


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"{",
        b'{"version":2}',
        b'{"version":2,"entity_path":"topics/"}',
        b'{"version":2,"entity_path":"topics/.."}',
        b'{"version":2,"entity_path":"clients/%2E%2E"}',
        b'{"version":2,"entity_path":"topics/a/b"}',
        b'{"version":2,"entity_path":"moons/europa"}',
    ],
)
async def test_an_odd_notification_of_settings_is_removed_when_it_is_old(
    cluster: Cluster, told: bytes
) -> None:
    broker = await with_topic(cluster)
    zk, prefix = broker.context.zk, znodes.SETTINGS_CHANGE.path()
    odd = await zk.create(prefix, told, sequential=True)
    await asyncio.sleep(16 * 60)
    good = b'{"version":2,"entity_path":"topics/clicks"}'
    for _ in range(3):
        await zk.create(prefix, good, sequential=True)
    await until_gone(broker, odd)
    assert broker.measures.broker.is_ready


async def test_settings_of_a_client_with_an_impossible_name_stop_no_broker(
    cluster: Cluster,
) -> None:
    broker = await cluster.started()
    zk = broker.context.zk
    for parent in ("/config/clients", "/config/topics"):
        await zk.create(f"{parent}/%2E%2E", b'{"version":1,"config":{}}')
    await broker.stop()
    again = await cluster.started()
    assert again.measures.broker.is_ready
