"""Which topics a producer asks its brokers for, and for how long."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from kdist.client.partitioner import partition_for
from kdist.client.producer.faults import DeliveryTimedOut
from kdist.errors import ApiError, Error
from kdist.model import NO_LEADER, TopicPartition
from kdist.protocol.metadata import MetadataRequest
from tests.unit.client.producer_world import FINE, Fault, Scene, play


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


def test_an_idle_producer_does_not_ask_for_leaders_that_nobody_needs() -> None:
    """It asked ten times a second, for ever, as long as one partition had no leader."""

    async def work(scene: Scene) -> None:
        scene.brokers.leaders[TopicPartition("t", 1)] = NO_LEADER
        async with scene.producer() as producer:
            await producer.send_and_wait("t", b"a")
            await asyncio.sleep(2)
            asked(scene)
            await asyncio.sleep(100)
            assert asked(scene) == []

    play(work, partitions=2)


def test_records_for_a_partition_without_a_leader_are_delivered_once_it_has_one() -> None:
    async def work(scene: Scene) -> None:
        one = TopicPartition("t", 1)
        scene.brokers.leaders[one] = NO_LEADER
        async with scene.producer() as producer:
            sent = await producer.send("t", b"a", partition=1)
            await asyncio.sleep(60)
            assert 50 <= len(asked(scene)) <= 90  # about once a second, not ten times
            scene.brokers.leaders[one] = 0
            assert (await sent).offset == 0
            await asyncio.sleep(2)
            asked(scene)
            await asyncio.sleep(60)
            assert asked(scene) == []

    play(work, partitions=2)


def test_nothing_is_asked_for_after_the_records_have_expired() -> None:
    async def work(scene: Scene) -> None:
        scene.brokers.leaders[TopicPartition("t", 0)] = NO_LEADER
        async with scene.producer(delivery_timeout_ms=5_000) as producer:
            with pytest.raises(DeliveryTimedOut, match="the partition has no leader"):
                await (await producer.send("t", b"a"))
            await asyncio.sleep(2)
            asked(scene)
            await asyncio.sleep(100)
            assert asked(scene) == []

    play(work)


@pytest.mark.parametrize("is_deleted_before", [True, False])
def test_closing_does_not_wait_for_a_topic_that_was_deleted(is_deleted_before: bool) -> None:
    def delete(scene: Scene) -> None:
        unknown = Error.UNKNOWN_TOPIC_OR_PARTITION
        scene.brokers.topic_errors["t"] = unknown
        scene.brokers.fault = lambda key, _: Fault(False, unknown) if key.topic == "t" else FINE

    async def work(scene: Scene) -> None:
        producer = await scene.producer().start()
        await producer.send_and_wait("t", b"a")
        delete(scene)
        sent = [await producer.send("t", b"b", partition=number) for number in range(2)]
        other = await producer.send("other", b"c")
        if is_deleted_before:
            await asyncio.sleep(60)
            assert not sent[0].done()  # the topic may be created again
        start_s = asyncio.get_running_loop().time()
        await producer.close()
        took_s = asyncio.get_running_loop().time() - start_s
        assert took_s < (2 if is_deleted_before else 13)
        assert (await other).offset == 0
        for each in sent:
            assert str(each.exception()) == (
                "UNKNOWN_TOPIC_OR_PARTITION: topic t does not exist any more"
            )

    play(work, partitions=2)


def test_closing_waits_for_a_topic_that_a_broker_has_not_heard_of_yet() -> None:
    async def work(scene: Scene) -> None:
        brokers, unknown = scene.brokers, Error.UNKNOWN_TOPIC_OR_PARTITION
        producer = await scene.producer().start()
        await producer.send_and_wait("t", b"a")
        brokers.topic_errors["t"] = unknown
        brokers.fault = lambda *_: Fault(False, unknown)
        sent = await producer.send("t", b"b")
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(8)
        del brokers.topic_errors["t"]
        brokers.fault = lambda *_: FINE
        await closing
        assert (await sent).offset == 1

    play(work, partitions=1)


def recreate(scene: Scene, partitions: int) -> None:
    """Delete the topic `t`, and create it again."""
    brokers = scene.brokers
    brokers.ids["t"] = uuid.UUID(int=1 + brokers.ids.get("t", uuid.UUID(int=0)).int)
    brokers.partitions = partitions
    for key in [each for each in brokers.kept if each.topic == "t"]:
        del brokers.kept[key], brokers.leaders[key]


@pytest.mark.parametrize("has_ids", [True, False])
def test_a_topic_may_be_recreated_with_fewer_partitions(has_ids: bool) -> None:
    """Records for those that are gone timed out after two minutes, and keys went on to them."""

    async def work(scene: Scene) -> None:
        recreate(scene, 4)
        keys = [b"key %d" % number for number in range(40)]
        async with scene.producer() as producer:
            await asyncio.gather(*[producer.send("t", key, key=key) for key in keys])
            await producer.flush()
            recreate(scene, 2)
            if not has_ids:
                del scene.brokers.ids["t"]
            begun_s = scene.clock.monotonic_ns() / 1e9
            with pytest.raises(ApiError, match=r"t-3 is gone: .* with 2 partitions"):
                await (await producer.send("t", b"a", partition=3))
            assert scene.clock.monotonic_ns() / 1e9 - begun_s < 2
            with pytest.raises(ApiError, match="partitions 0 to 1, and no 3"):
                await producer.send("t", b"a", partition=3)
            sent = [await producer.send("t", key, key=key) for key in keys]
            found = [(await each).partition for each in sent]
            assert found == [partition_for(key, 2) for key in keys]
            assert sum(len(each.records) for each in scene.brokers.kept.values()) == 40
            for _ in range(10):
                assert (await producer.send_and_wait("t", b"unkeyed")).partition < 2
            await asyncio.sleep(2)
            asked(scene)
            await asyncio.sleep(60)
            assert asked(scene) == []
            recreate(scene, 4)
            await producer.send("t", b"a", partition=0)
            await producer.flush()
            sent = [await producer.send("t", b"more", partition=number) for number in range(4)]
            assert [(await each).partition for each in sent] == [0, 1, 2, 3]
            held = [each.values().count(b"more") for each in scene.brokers.kept.values()]
            assert held == [1, 1, 1, 1]

    play(work)


def test_a_broker_that_has_not_heard_of_new_partitions_takes_none_away() -> None:
    async def work(scene: Scene) -> None:
        recreate(scene, 4)
        async with scene.producer(metadata_max_age_ms=1_000) as producer:
            await producer.send_and_wait("t", b"a", partition=3)
            scene.brokers.partitions = 2
            sent = await producer.send("t", b"b", partition=0)
            await asyncio.sleep(5)
            await sent
            assert (await producer.send_and_wait("t", b"c", partition=3)).offset == 1

    play(work)
