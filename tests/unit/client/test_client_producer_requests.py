"""When a producer sends a request, and which batches go in it, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from kdist.client.producer.sender import Sender
from kdist.errors import Error
from kdist.model import TopicPartition
from tests.unit.client.producer_world import FINE, Fault, Scene, play


def test_a_batch_lingers_unless_a_caller_waits_for_it() -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(linger_ms=1_000) as producer:
            first = await producer.send("t", b"a")
            await first
            assert scene.clock.monotonic_ns() / 1e9 < 0.5
            second = await producer.send("t", b"b")
            await asyncio.sleep(0.9)
            assert not second.done()
            await asyncio.sleep(0.3)
            assert second.done()

    play(work)


def test_a_batch_past_half_its_linger_time_goes_with_one_that_is_due() -> None:
    async def work(scene: Scene) -> None:
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

    play(work, partitions=3)


def test_a_batch_that_is_opened_while_others_linger_wakes_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[float] = []
    look = Sender.look

    def counted(sender: Sender) -> None:
        looks.append(1)
        look(sender)

    monkeypatch.setattr(Sender, "look", counted)

    async def work(scene: Scene) -> None:
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

    play(work, partitions=100)


def test_a_failed_batchs_backoff_is_not_cut_short_by_batches_that_are_due() -> None:
    async def work(scene: Scene) -> None:
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

    play(work, partitions=2)


def test_a_request_of_many_partitions_equals_the_protocols_encoding() -> None:
    async def work(scene: Scene) -> None:
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
                assert scene.brokers.kept[TopicPartition(topic, number)].values() == [
                    b"%d" % number
                ]

    play(work, partitions=5)


def test_batches_grow_while_a_broker_has_hundreds_unanswered() -> None:
    async def work(scene: Scene) -> None:
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

    play(work, partitions=500)
