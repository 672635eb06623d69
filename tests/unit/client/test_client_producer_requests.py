"""Which topics a producer asks its brokers for, when it sends a request, and with which batches."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from kdist.client.partitioner import partition_for
from kdist.client.producer.faults import DeliveryTimedOut, ProducerClosed
from kdist.client.producer.sender import Sender
from kdist.errors import ApiError, Error
from kdist.model import NO_LEADER, TopicPartition
from kdist.protocol.init_producer_id import InitProducerIdRequest
from kdist.protocol.metadata import MetadataRequest
from tests.refusals import refused
from tests.unit.client.producer_world import FINE, PORT, Fault, Scene, Served, play

pytestmark = pytest.mark.played(by=play)


class Mute(Served):
    """A broker that never answers ApiVersions."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene.brokers, 1)
        self.asked, self.lost = asyncio.Event(), asyncio.Event()

    def frame_received(self, frame: memoryview) -> None:
        self.asked.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


async def test_a_batch_lingers_unless_a_caller_waits_for_it(scene: Scene, /) -> None:
    async with scene.producer(linger_ms=1_000) as producer:
        first = await producer.send("t", b"a")
        await first
        assert scene.clock.monotonic_ns() / 1e9 < 0.5
        second = await producer.send("t", b"b")
        await asyncio.sleep(0.9)
        assert not second.done()
        await asyncio.sleep(0.3)
        assert second.done()


@pytest.mark.played(by=play, partitions=3)
async def test_a_batch_past_half_its_linger_time_goes_with_one_that_is_due(scene: Scene, /) -> None:
    async with scene.producer(linger_ms=1_000) as producer:
        await producer.send_and_wait("t", b"first", partition=0)
        sent = []
        for partition in range(3):
            sent.append(await producer.send("t", b"a", partition=partition))
            await asyncio.sleep(0.3)
        await asyncio.sleep(0.2)
        assert [each.done() for each in sent] == [True, True, False]
        await asyncio.sleep(0.6)
        assert sent[2].done()
        assert len(scene.produces()) == 3


@pytest.mark.played(by=play, partitions=100)
async def test_a_batch_that_is_opened_while_others_linger_wakes_nobody(
    scene: Scene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    look = Sender.look

    def counted(sender: Sender) -> None:
        looks.append(1)
        look(sender)

    monkeypatch.setattr(Sender, "look", counted)
    async with scene.producer(linger_ms=1_000) as producer:
        await producer.send_and_wait("t", b"first")
        await asyncio.sleep(2)
        del looks[:]
        for partition in range(100):
            await producer.send("t", b"a", partition=partition)
            await asyncio.sleep(0.001)
        assert len(looks) == 1
        await asyncio.sleep(1)
        assert len(looks) <= 4


@pytest.mark.played(by=play, partitions=2)
async def test_a_failed_batchs_backoff_is_not_cut_short_by_batches_that_are_due(
    scene: Scene, /
) -> None:
    fault = Fault(is_written=False, error=Error.NOT_ENOUGH_REPLICAS)
    faults = iter([fault])
    scene.brokers.fault = lambda *_: next(faults, FINE)
    settings = {"linger_ms": 1_000, "retry_backoff_ms": 400}
    async with scene.producer(**settings) as producer:
        tried = asyncio.ensure_future(await producer.send("t", b"a", partition=0))
        await asyncio.sleep(0.1)
        await producer.send_and_wait("t", b"b", partition=1)
        assert not tried.done()
        await asyncio.sleep(0.5)
        assert tried.done()


@pytest.mark.played(by=play, partitions=5)
async def test_a_request_of_many_partitions_equals_the_protocols_encoding(scene: Scene, /) -> None:
    async with scene.producer(linger_ms=10) as producer:
        sent = [
            await producer.send(topic, b"%d" % number, key=b"k", partition=number)
            for number in range(5)
            for topic in ("t", "other", "third")
        ]
        await producer.flush()
        assert {(await each).offset for each in sent} == {0}
        partitions = [
            len(topic.partition_data) for each in scene.produces() for topic in each.topic_data
        ]
        assert partitions == [5, 5, 5]
    for number in range(5):
        for topic in ("t", "other", "third"):
            assert scene.brokers.kept[TopicPartition(topic, number)].values() == [b"%d" % number]


@pytest.mark.played(by=play, partitions=500)
async def test_batches_grow_while_a_broker_has_hundreds_unanswered(scene: Scene, /) -> None:
    scene.brokers.fault = lambda *_: Fault(delay_s=1)
    async with scene.producer(linger_ms=10) as producer:
        for _ in range(3):
            for partition in range(500):
                await producer.send("t", b"a", partition=partition)
            await asyncio.sleep(0.1)
        assert len(scene.produces()) == 1
        await producer.flush()
        assert len(scene.produces()) == 2
    for kept in scene.brokers.kept.values():
        assert [header.record_count for header in kept.batches] == [1, 2]


@pytest.mark.parametrize("name", [None, 5, b"t", "", "a b", "\ud800", "x" * 40_000])
async def test_an_invalid_topic_name_is_refused_and_delays_no_other(
    scene: Scene, /, name: Any
) -> None:
    async with scene.producer() as producer:
        with pytest.raises((TypeError, ApiError), match="topic"):
            await producer.send(name, b"a")
        with pytest.raises((TypeError, ApiError), match="topic"):
            await producer.send_many(name, [b"a"], keys=[b"k"])
        assert (await producer.send_and_wait("t", b"a")).offset == 0
        assert scene.clock.monotonic_ns() / 1e9 < 1


def asked(scene: Scene) -> list[list[str | None]]:
    """The topics in metadata requests since the last call."""
    requests, scene.brokers.requests = scene.brokers.requests, []
    return [
        [topic.name for topic in each.topics]
        for each in requests
        if isinstance(each, MetadataRequest) and each.topics
    ]


async def test_a_topic_that_nobody_waits_for_any_more_is_not_asked_for(scene: Scene, /) -> None:
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
        with refused(Error.UNKNOWN_TOPIC_OR_PARTITION, "3000 ms"):
            await producer.send("nor.this", b"a")
        await asyncio.sleep(1)
        assert asked(scene)
        await asyncio.sleep(200)
        assert all("nor.this" not in names for names in asked(scene))


async def test_an_unused_topic_is_not_asked_for(scene: Scene, /) -> None:
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


@pytest.mark.parametrize("idempotence", [True, False])
async def test_a_topic_that_nothing_is_sent_to_is_forgotten_and_may_come_back(
    scene: Scene, /, idempotence: bool
) -> None:
    """A queue for each partition of each topic ever sent to stayed.

    One that comes back must not begin at sequence number 0 again under the same epoch: the broker
    would take its first batch for the one it has.
    """
    settings = {"metadata_max_age_ms": 10_000, "metadata_max_idle_ms": 50_000}
    async with scene.producer(enable_idempotence=idempotence, **settings) as producer:
        topics = producer._started.accumulator.topics
        for _ in range(3):
            await producer.send_and_wait("yesterday", b"a")
        for _ in range(9):
            await producer.send_and_wait("today", b"a")
            assert "today" in topics
            await asyncio.sleep(10)
        assert [*topics] == ["today"]
        assert [*producer._started._metadata._asked] == ["today"]
        for name in ("yesterday", "tomorrow", "today"):
            sent = [await producer.send(name, b"b") for _ in range(3)]
            assert len({(await each).offset for each in sent}) == 3
        scene.brokers.topic_errors["typo"] = Error.UNKNOWN_TOPIC_OR_PARTITION
        with refused(Error.UNKNOWN_TOPIC_OR_PARTITION):
            await producer.send("typo", b"a")
        await asyncio.sleep(70)
        assert topics == {}
    kept = scene.brokers.kept
    assert kept[TopicPartition("yesterday", 0)].values() == [b"a"] * 3 + [b"b"] * 3
    assert kept[TopicPartition("tomorrow", 0)].values() == [b"b"] * 3
    assert kept[TopicPartition("today", 0)].values() == [b"a"] * 9 + [b"b"] * 3
    bumps = [each for each in scene.brokers.requests if isinstance(each, InitProducerIdRequest)]
    assert len(bumps) == 2 * idempotence


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.played(by=play, hosts=2)
async def test_a_leader_that_cannot_be_reached_is_looked_up_at_a_pace(
    scene: Scene, /, is_known: bool
) -> None:
    """It used to be looked up as fast as answers came, while connecting or if it was no broker."""
    scene.brokers.leaders[TopicPartition("t", 0)] = 1 if is_known else 9
    if is_known:
        scene.network.partition({"client", "b0"}, {"b1"})
    async with scene.producer(delivery_timeout_ms=12_000) as producer:
        with pytest.raises(DeliveryTimedOut) as told:
            await (await producer.send("t", b"a"))
        assert 2 <= len(asked(scene)) <= 130
        assert ("b1:9092" if is_known else "leader 9 is no known broker") in str(told.value)


@pytest.mark.played(by=play, partitions=2)
async def test_an_idle_producer_does_not_ask_for_leaders_that_nobody_needs(scene: Scene, /) -> None:
    """It asked ten times a second, for ever, as long as one partition had no leader."""
    scene.brokers.leaders[TopicPartition("t", 1)] = NO_LEADER
    async with scene.producer() as producer:
        await producer.send_and_wait("t", b"a")
        await asyncio.sleep(2)
        asked(scene)
        await asyncio.sleep(100)
        assert asked(scene) == []


@pytest.mark.played(by=play, partitions=2)
async def test_records_for_a_partition_without_a_leader_are_delivered_once_it_has_one(
    scene: Scene, /
) -> None:
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


async def test_nothing_is_asked_for_after_the_records_have_expired(scene: Scene, /) -> None:
    scene.brokers.leaders[TopicPartition("t", 0)] = NO_LEADER
    async with scene.producer(delivery_timeout_ms=5_000) as producer:
        with pytest.raises(DeliveryTimedOut, match="the partition has no leader"):
            await (await producer.send("t", b"a"))
        await asyncio.sleep(2)
        asked(scene)
        await asyncio.sleep(100)
        assert asked(scene) == []


@pytest.mark.parametrize("is_deleted_before", [True, False])
@pytest.mark.played(by=play, partitions=2)
async def test_closing_does_not_wait_for_a_topic_that_was_deleted(
    scene: Scene, /, is_deleted_before: bool
) -> None:
    def delete(scene: Scene) -> None:
        unknown = Error.UNKNOWN_TOPIC_OR_PARTITION
        scene.brokers.topic_errors["t"] = unknown
        scene.brokers.fault = lambda key, _: Fault(False, unknown) if key.topic == "t" else FINE

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


@pytest.mark.played(by=play, partitions=1)
async def test_closing_waits_for_a_topic_that_a_broker_has_not_heard_of_yet(
    scene: Scene, /
) -> None:
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


def recreate(scene: Scene, partitions: int) -> None:
    """Delete the topic `t`, and create it again."""
    brokers = scene.brokers
    brokers.ids["t"] = uuid.UUID(int=1 + brokers.ids.get("t", uuid.UUID(int=0)).int)
    brokers.partitions = partitions
    for key in [each for each in brokers.kept if each.topic == "t"]:
        del brokers.kept[key], brokers.leaders[key]


@pytest.mark.parametrize("has_ids", [True, False])
async def test_a_topic_may_be_recreated_with_fewer_partitions(
    scene: Scene, /, has_ids: bool
) -> None:
    """Records for those that are gone timed out after two minutes, and keys went on to them."""
    recreate(scene, 4)
    keys = [b"key %d" % number for number in range(40)]
    async with scene.producer() as producer:
        await asyncio.gather(*[producer.send("t", key, key=key) for key in keys])
        await producer.flush()
        recreate(scene, 2)
        if not has_ids:
            del scene.brokers.ids["t"]
        begun_s = scene.clock.monotonic_ns() / 1e9
        with refused(Error.UNKNOWN_TOPIC_OR_PARTITION, "t-3"):
            await (await producer.send("t", b"a", partition=3))
        assert scene.clock.monotonic_ns() / 1e9 - begun_s < 2
        with refused(Error.UNKNOWN_TOPIC_OR_PARTITION):
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


async def test_a_broker_that_has_not_heard_of_new_partitions_takes_none_away(
    scene: Scene, /
) -> None:
    recreate(scene, 4)
    async with scene.producer(metadata_max_age_ms=1_000) as producer:
        await producer.send_and_wait("t", b"a", partition=3)
        scene.brokers.partitions = 2
        sent = await producer.send("t", b"b", partition=0)
        await asyncio.sleep(5)
        await sent
        assert (await producer.send_and_wait("t", b"c", partition=3)).offset == 1


@pytest.mark.played(by=play, hosts=2, partitions=2)
async def test_closing_a_producer_closes_connections_that_still_negotiate(scene: Scene, /) -> None:
    mute = Mute(scene)
    scene.network.crash("b1")
    await scene.brokers.hosts[1].listen(lambda: mute, "", PORT)
    producer = await scene.producer().start()
    sent = await producer.send("t", b"a", partition=1)
    await producer.close(timeout_s=2)
    with pytest.raises(ProducerClosed):
        await sent
    assert mute.asked.is_set()
    async with asyncio.timeout(5):
        await mute.lost.wait()
