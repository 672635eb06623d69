"""Which topics a producer asks its brokers for, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kdist.client.producer.faults import DeliveryTimedOut
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.protocol.metadata import MetadataRequest
from tests.unit.client.producer_world import Scene, play


@pytest.mark.parametrize("name", [None, 5, b"t", "", "a b", "\ud800", "x" * 40_000])
def test_an_invalid_topic_name_is_refused_and_delays_no_other(name: Any) -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer() as producer:
            with pytest.raises((TypeError, ApiError), match="topic"):
                await producer.send(name, b"a")
            with pytest.raises((TypeError, ApiError), match="topic"):
                await producer.send_many(name, [b"a"], keys=[b"k"])
            assert (await producer.send_and_wait("t", b"a")).offset == 0
            assert scene.clock.monotonic_ns() / 1e9 < 1

    play(work)


def asked(scene: Scene) -> list[list[str | None]]:
    """The topics in metadata requests since the last call."""
    requests, scene.brokers.requests = scene.brokers.requests, []
    return [
        [topic.name for topic in each.topics]
        for each in requests
        if isinstance(each, MetadataRequest) and each.topics
    ]


def test_a_topic_that_nobody_waits_for_any_more_is_not_asked_for() -> None:
    async def work(scene: Scene) -> None:
        scene.brokers.topic_errors["typo"] = Error.UNKNOWN_TOPIC_OR_PARTITION
        async with scene.producer(max_block_ms=3_000, metadata_max_age_ms=60_000) as producer:
            waiting = [asyncio.create_task(producer.send("typo", b"a"))]
            await asyncio.sleep(2)
            waiting.append(asyncio.create_task(producer.send("typo", b"b")))
            await asyncio.sleep(2)  # the first waits no more
            del scene.brokers.topic_errors["typo"]
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert [isinstance(each, ApiError) for each in outcomes] == [True, False]
            scene.brokers.topic_errors["nor.this"] = Error.UNKNOWN_TOPIC_OR_PARTITION
            with pytest.raises(ApiError, match="3000 ms"):
                await producer.send("nor.this", b"a")
            await asyncio.sleep(1)
            assert asked(scene)
            await asyncio.sleep(200)
            assert all("nor.this" not in names for names in asked(scene))

    play(work)


def test_an_unused_topic_is_not_asked_for() -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(metadata_max_age_ms=60_000) as producer:
            for _ in range(3):
                await producer.send_and_wait("yesterday", b"a")
                await producer.send_and_wait("today", b"a")
            for _ in range(4):
                asked(scene)
                await asyncio.sleep(61)
                await producer.send_and_wait("today", b"a")
            assert asked(scene) == [["today"]]
            assert (await producer.send_and_wait("yesterday", b"a")).offset == 3

    play(work)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_leader_that_cannot_be_reached_is_looked_up_at_a_pace(is_known: bool) -> None:
    """It used to be looked up as fast as answers came, while connecting or if it was no broker."""

    async def work(scene: Scene) -> None:
        scene.brokers.leaders[TopicPartition("t", 0)] = 1 if is_known else 9
        if is_known:
            scene.network.partition({"client", "b0"}, {"b1"})
        async with scene.producer(delivery_timeout_ms=12_000) as producer:
            with pytest.raises(DeliveryTimedOut) as told:
                await (await producer.send("t", b"a"))
            assert 2 <= len(asked(scene)) <= 130
            assert ("b1:9092" if is_known else "leader 9 is no known broker") in str(told.value)

    play(work, hosts=2)
