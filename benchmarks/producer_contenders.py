"""Producers to be measured: each sends all values, and returns once all are acknowledged.

Each calls `begin` once a first message has been acknowledged; timing starts there. All have the
same linger, acks and codec; other settings are each client's defaults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka

from kdist import Producer, aio

_WAIT_S = 120
LINGER_MS = 5


class Load(NamedTuple):
    """What is sent."""

    values: Sequence[bytes]
    acks: str
    codec: str


Begin = Callable[[], None]
Send = Callable[[str, str, Load, Begin], None]


def _kdist(address: str, load: Load) -> Producer:
    return Producer(bootstrap_servers=address, **_settings(load))


def _settings(load: Load) -> dict[str, Any]:
    return {"acks": load.acks, "compression_type": load.codec, "linger_ms": LINGER_MS}


def kdist_send_many(address: str, topic: str, load: Load, begin: Begin) -> None:
    """Everything in one call."""
    with _kdist(address, load) as producer:
        producer.send(topic, b"first").result(_WAIT_S)
        begin()
        producer.send_many(topic, load.values).result(_WAIT_S)


def kdist_send(address: str, topic: str, load: Load, begin: Begin) -> None:
    """A call for each."""
    with _kdist(address, load) as producer:
        send = producer.send
        send(topic, b"first").result(_WAIT_S)
        begin()
        for value in load.values:
            send(topic, value)
        producer.flush(_WAIT_S)


def kdist_send_keyed(address: str, topic: str, load: Load, begin: Begin) -> None:
    """A call for each, with a key of its own."""
    keys = [b"user-%06d" % number for number in range(len(load.values))]
    with _kdist(address, load) as producer:
        send = producer.send
        send(topic, b"first").result(_WAIT_S)
        begin()
        for value, key in zip(load.values, keys, strict=True):
            send(topic, value, key)
        producer.flush(_WAIT_S)


def kdist_aio_send(address: str, topic: str, load: Load, begin: Begin) -> None:
    """A call for each, awaited until it is in a batch."""

    async def run() -> None:
        async with aio.Producer(bootstrap_servers=address, **_settings(load)) as producer:
            await producer.send_and_wait(topic, b"first")
            begin()
            for value in load.values:
                await producer.send(topic, value)
            await producer.flush()

    asyncio.run(run())


def kdist_aio_send_many(address: str, topic: str, load: Load, begin: Begin) -> None:
    """Everything in one call, awaited."""

    async def run() -> None:
        async with aio.Producer(bootstrap_servers=address, **_settings(load)) as producer:
            await producer.send_and_wait(topic, b"first")
            begin()
            await (await producer.send_many(topic, load.values))

    asyncio.run(run())


def _confluent(address: str, topic: str, load: Load) -> confluent_kafka.Producer:
    """A producer whose first message has been acknowledged."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "acks": load.acks,
            "enable.idempotence": load.acks == "all",
            "compression.type": load.codec,
            "linger.ms": LINGER_MS,
        }
    )
    producer.produce(topic, b"first")
    producer.flush(_WAIT_S)
    return producer


def confluent_produce(address: str, topic: str, load: Load, begin: Begin) -> None:
    """A call for each, and a poll, as its documentation shows."""
    producer = _confluent(address, topic, load)
    begin()
    produce, poll = producer.produce, producer.poll
    for value in load.values:
        while True:
            try:
                produce(topic, value)
                break
            except BufferError:
                poll(0.01)
        poll(0)
    assert producer.flush(_WAIT_S) == 0, "not all were acknowledged"


def confluent_produce_only(address: str, topic: str, load: Load, begin: Begin) -> None:
    """A call for each, and a poll only when its queue is full: as fast as it can be used."""
    producer = _confluent(address, topic, load)
    begin()
    produce = producer.produce
    for value in load.values:
        while True:
            try:
                produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(_WAIT_S) == 0, "not all were acknowledged"


def confluent_produce_keyed(address: str, topic: str, load: Load, begin: Begin) -> None:
    """A call for each, with a key of its own, and a poll."""
    keys = [b"user-%06d" % number for number in range(len(load.values))]
    producer = _confluent(address, topic, load)
    begin()
    produce, poll = producer.produce, producer.poll
    for value, key in zip(load.values, keys, strict=True):
        while True:
            try:
                produce(topic, value, key)
                break
            except BufferError:
                poll(0.01)
        poll(0)
    assert producer.flush(_WAIT_S) == 0, "not all were acknowledged"


def _python_settings(load: Load) -> dict[str, Any]:
    return {
        "acks": 1 if load.acks == "1" else "all",
        "enable_idempotence": load.acks == "all",
        "compression_type": None if load.codec == "none" else load.codec,
        "linger_ms": LINGER_MS,
    }


def kafka_python_send(address: str, topic: str, load: Load, begin: Begin) -> None:
    """A call for each."""
    producer = kafka.KafkaProducer(bootstrap_servers=address, **_python_settings(load))
    producer.send(topic, b"first").get(_WAIT_S)
    begin()
    for value in load.values:
        producer.send(topic, value)
    producer.flush(_WAIT_S)
    producer.close()


def aiokafka_send(address: str, topic: str, load: Load, begin: Begin) -> None:
    """A call for each, awaited until it is in a batch."""

    async def run() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=address, **_python_settings(load)
        ) as producer:
            await producer.send_and_wait(topic, b"first")
            begin()
            for value in load.values:
                await producer.send(topic, value)
            await producer.flush()

    asyncio.run(run())


# By name, with a divisor: slow contenders send only that part of the messages. The first is the
# yardstick.
SENDING: Mapping[str, tuple[Send, int]] = {
    "confluent produce+poll": (confluent_produce, 1),
    "confluent produce": (confluent_produce_only, 1),
    "kdist send_many": (kdist_send_many, 1),
    "kdist send": (kdist_send, 1),
    "kdist send with keys": (kdist_send_keyed, 2),
    "confluent with keys": (confluent_produce_keyed, 2),
    "kdist.aio send_many": (kdist_aio_send_many, 1),
    "kdist.aio send": (kdist_aio_send, 4),
    "aiokafka send": (aiokafka_send, 20),
    "kafka-python send": (kafka_python_send, 20),
}
