"""Quotas of the partitions that the controller creates and deletes for a client (KIP-599)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kdist.errors import Error
from kdist.network.client import Client
from kdist.protocol.create_partitions import CreatePartitionsRequest, GrownTopic
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic
from kdist.protocol.delete_topics import DeleteTopicsRequest, TopicToDelete
from kdist.protocol.metadata import MetadataRequest, MetadataTopic
from tests.simulator.cluster import Cluster
from tests.unit.broker.broker_quotas import named, set_

MUTATION = "controller_mutation_rate"
EXCEEDED, THERE = Error.THROTTLING_QUOTA_EXCEEDED, Error.TOPIC_ALREADY_EXISTS


async def limited(cluster: Cluster) -> Client:
    """A client that may have a partition created or deleted each second, and eleven at once."""
    await cluster.started()
    await set_(await named(cluster, "admin"), "etl", **{MUTATION: 1.0})
    return await named(cluster, "etl")


def _new(**topics: int) -> list[NewTopic]:
    return [
        NewTopic(name=name, num_partitions=size, replication_factor=1, assignments=[], configs=[])
        for name, size in topics.items()
    ]


async def create(client: Client, version: int = 7, **topics: int) -> tuple[dict[str, int], int]:
    """Each topic's error, and how long the client is to pause, in ms."""
    request = CreateTopicsRequest(topics=_new(**topics), timeout_ms=5000)
    answer: Any = await client.send(request, version)
    return {each.name: each.error_code for each in answer.topics}, answer.throttle_time_ms


async def test_a_client_that_owes_is_refused_and_told_when_to_come_back(cluster: Cluster) -> None:
    client = await limited(cluster)
    begun_s = cluster.loop.time()
    assert await create(client, a=10) == ({"a": 0}, 0)
    # What is left lets one more in, and nothing after it, in the same request too.
    found, pause_ms = await create(client, b=21, c=1)
    assert found == {"b": 0, "c": EXCEEDED}
    assert 19_000 < pause_ms <= 20_000
    found, again_ms = await create(client, d=1)  # once the connection has paused
    assert cluster.loop.time() - begun_s >= 19
    assert (found, again_ms) == ({"d": 0}, pytest.approx(1000, abs=50))
    others = await named(cluster, "other")
    assert await create(others, e=500) == ({"e": 0}, 0)


async def test_growth_and_deletions_are_charged_too(cluster: Cluster) -> None:
    client = await limited(cluster)
    await create(await named(cluster, "other"), a=5, b=30)
    grown = [GrownTopic(name="a", count=20, assignments=None)]
    answer: Any = await client.send(
        CreatePartitionsRequest(topics=grown, timeout_ms=5000, validate_only=False), 3
    )
    assert answer.results[0].error_code == 0
    assert 3_000 < answer.throttle_time_ms <= 4_000
    deleted = [TopicToDelete(name="b"), TopicToDelete(name="a")]
    request = DeleteTopicsRequest(topics=deleted, timeout_ms=5000)
    answer = await client.send(request, 6)
    assert [each.error_code for each in answer.responses] == [0, EXCEEDED]
    assert 29_000 < answer.throttle_time_ms <= 30_000


@pytest.mark.parametrize("is_strict", [False, True])
async def test_an_older_client_is_never_refused_but_pauses(
    cluster: Cluster, is_strict: bool
) -> None:
    client = await limited(cluster)
    found, pause_ms = await create(client, 6 if is_strict else 5, a=12, b=1)
    assert found == {"a": 0, "b": EXCEEDED if is_strict else 0}
    assert 900 < pause_ms <= (1_000 if is_strict else 2_000)


async def test_what_was_not_done_costs_nothing(cluster: Cluster) -> None:
    client = await limited(cluster)
    trial = CreateTopicsRequest(topics=_new(trial=100), timeout_ms=5000, validate_only=True)
    assert (await client.send(trial, 7)).throttle_time_ms == 0
    await create(client, a=1)
    for _ in range(3):
        found, pause_ms = await create(client, a=10)
        assert (found, pause_ms) == ({"a": THERE}, 0)
    assert await create(client, b=10) == ({"b": 0}, 0)


async def test_a_refusal_forgives_nothing_that_is_owed(cluster: Cluster) -> None:
    client = await limited(cluster)
    # Each of these debts is beyond what a client can owe, and given back.
    found, pause_ms = await create(client, 5, a=20, b=100_000, c=100_000)
    assert found == {"a": 0, "b": Error.INVALID_PARTITIONS, "c": Error.INVALID_PARTITIONS}
    assert 8_000 < pause_ms <= 9_000
    found, pause_ms = await create(client, 7, d=1)
    assert (found, pause_ms) == ({"d": 0}, pytest.approx(1000, abs=50))


async def test_what_goes_on_after_the_answer_is_charged(cluster: Cluster) -> None:
    client = await limited(cluster)
    request = CreateTopicsRequest(topics=_new(a=21), timeout_ms=0)
    answer: Any = await client.send(request, 7)
    assert answer.topics[0].error_code == Error.REQUEST_TIMED_OUT
    assert 9_000 < answer.throttle_time_ms <= 10_000
    assert await create(await named(cluster, "other"), a=21) == ({"a": THERE}, 0)


async def test_growth_of_a_topic_that_was_only_just_created_is_charged(cluster: Cluster) -> None:
    client = await limited(cluster)
    created = client.ask(CreateTopicsRequest(topics=_new(a=1), timeout_ms=0), 7)
    grown = [GrownTopic(name="a", count=31, assignments=None)]
    request = CreatePartitionsRequest(topics=grown, timeout_ms=5000, validate_only=False)
    grown_at_once = client.ask(request, 3)
    assert (await created).topics[0].error_code == Error.REQUEST_TIMED_OUT
    answer: Any = await grown_at_once
    assert answer.results[0].error_code == 0
    assert answer.throttle_time_ms > 19_000
    missing = [GrownTopic(name="b", count=50, assignments=None)]
    request = CreatePartitionsRequest(topics=missing, timeout_ms=5000, validate_only=False)
    answer = await (await named(cluster, "etl", 1)).send(request, 2)
    assert answer.results[0].error_code == Error.UNKNOWN_TOPIC_OR_PARTITION
    assert answer.throttle_time_ms < 22_000


async def test_topics_that_are_created_automatically_are_charged_once(cluster: Cluster) -> None:
    await cluster.started(num_partitions="21")
    await set_(await named(cluster, "admin"), "etl", **{MUTATION: 1.0})
    client = await named(cluster, "etl")
    request = MetadataRequest(topics=[MetadataTopic(name="a")], allow_auto_topic_creation=True)
    first: Any = await client.send(request, 9)
    assert first.topics[0].error_code == Error.LEADER_NOT_AVAILABLE
    assert 9_000 < first.throttle_time_ms <= 10_000
    again: Any = await client.send(request, 9)  # once the connection has paused
    assert (again.topics[0].error_code, again.throttle_time_ms) == (0, 0)


async def test_a_topic_that_cannot_be_created_automatically_costs_nothing(cluster: Cluster) -> None:
    await cluster.started(num_partitions="11", default_replication_factor="2")
    await set_(await named(cluster, "admin"), "etl", **{MUTATION: 0.001})
    client = await named(cluster, "etl")
    request = MetadataRequest(topics=[MetadataTopic(name="a")], allow_auto_topic_creation=True)
    for _ in range(3):
        await client.send(request, 9)
        await asyncio.sleep(1)
    assert (await client.send(request, 9)).topics[0].error_code == Error.LEADER_NOT_AVAILABLE
