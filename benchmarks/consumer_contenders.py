"""Consumers to be measured: each reads `count` records of a partition from its start, every value.

A contender is a generator function with two `yield`s. It connects and reads the first record before
the first, does the measured work between the two, and closes after the second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import aiokafka
import confluent_kafka
import kafka

from kdist import Consumer, TopicPartition

Contender = Callable[[str, str, int], Iterator[None]]
_WAIT_S = 30
_CHUNK = 1000  # records requested per call, where the client lets one choose


def kdist_batches(address: str, topic: str, count: int) -> Iterator[None]:
    """Whole batches, their values as lists."""
    with _kdist(address, topic) as consumer:
        left = count - sum(len(batch.values()) for batch in consumer.poll_batches(_WAIT_S, 1))
        yield
        while left > 0:
            for batch in consumer.poll_batches(_WAIT_S):
                for value in batch.values():
                    value  # noqa: B018 - as an application would look at it
                left -= len(batch)
        yield


def kdist_arrow(address: str, topic: str, count: int) -> Iterator[None]:
    """Whole batches, their values as Arrow."""
    with _kdist(address, topic) as consumer:
        left = count - sum(len(batch) for batch in consumer.poll_batches(_WAIT_S, 1))
        yield
        while left > 0:
            for batch in consumer.poll_batches(_WAIT_S):
                left -= batch.to_arrow(["value"]).num_rows
        yield


def kdist_poll(address: str, topic: str, count: int) -> Iterator[None]:
    """Records by `poll`, as many as each call returns."""
    with _kdist(address, topic) as consumer:
        left = count - len(consumer.poll(_WAIT_S))
        yield
        while left > 0:
            for record in consumer.poll(_WAIT_S):
                record.value  # noqa: B018
                left -= 1
        yield


def kdist_one_by_one(address: str, topic: str, count: int) -> Iterator[None]:
    """Records by iteration."""
    with _kdist(address, topic) as consumer:
        records = iter(consumer)
        next(records)
        yield
        left = count - 1
        for record in records:
            record.value  # noqa: B018
            left -= 1
            if not left:
                break
        yield


def _kdist(address: str, topic: str) -> Consumer:
    consumer = Consumer(address, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    return consumer


def confluent_consume(address: str, topic: str, count: int) -> Iterator[None]:
    """confluent-kafka, lists of messages."""
    return _confluent_consume(_confluent(address, topic), count)


def confluent_checked(address: str, topic: str, count: int) -> Iterator[None]:
    """The same, with CRCs checked as all other clients do by default."""
    return _confluent_consume(_confluent(address, topic, {"check.crcs": True}), count)


def _confluent_consume(consumer: confluent_kafka.Consumer, count: int) -> Iterator[None]:
    left = count - len(consumer.consume(1, _WAIT_S))
    yield
    while left > 0:
        for message in consumer.consume(min(_CHUNK, left), _WAIT_S):
            message.value()
            left -= 1
    yield
    consumer.close()


def confluent_poll(address: str, topic: str, count: int) -> Iterator[None]:
    """confluent-kafka, one message a call."""
    consumer = _confluent(address, topic)
    assert consumer.poll(_WAIT_S)
    yield
    left = count - 1
    while left > 0:
        message = consumer.poll(_WAIT_S)
        message.value()
        left -= 1
    yield
    consumer.close()


def _confluent(
    address: str, topic: str, settings: Mapping[str, object] = MappingProxyType({})
) -> confluent_kafka.Consumer:
    usual = {"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer({**usual, **settings})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    return consumer


def kafka_python(address: str, topic: str, count: int) -> Iterator[None]:
    """kafka-python, by iteration."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
    consumer.assign([kafka.TopicPartition(topic, 0)])
    next(consumer)
    yield
    left = count - 1
    for record in consumer:
        record.value  # noqa: B018
        left -= 1
        if not left:
            break
    yield
    consumer.close()


def aiokafka_many(address: str, topic: str, count: int) -> Iterator[None]:
    """aiokafka, lists of records."""
    loop = asyncio.new_event_loop()

    async def begin() -> aiokafka.AIOKafkaConsumer:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, auto_offset_reset="earliest"
        )
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition(topic, 0)])
        await consumer.getone()
        return consumer

    async def read(consumer: aiokafka.AIOKafkaConsumer) -> None:
        left = count - 1
        while left > 0:
            for records in (await consumer.getmany(timeout_ms=_WAIT_S * 1000)).values():
                for record in records:
                    record.value  # noqa: B018
                    left -= 1

    consumer = loop.run_until_complete(begin())
    yield
    loop.run_until_complete(read(consumer))
    yield
    loop.run_until_complete(consumer.stop())
    loop.close()


BATCHES: dict[str, Contender] = {
    "confluent consume": confluent_consume,
    "confluent consume, CRCs": confluent_checked,
    "kdist batches": kdist_batches,
    "kdist arrow": kdist_arrow,
    "aiokafka getmany": aiokafka_many,
}
ONE_BY_ONE: dict[str, Contender] = {
    "confluent poll": confluent_poll,
    "kdist iteration": kdist_one_by_one,
    "kdist poll": kdist_poll,
    "kafka-python": kafka_python,
}
