"""Clients whose latency is measured: each sends at a steady rate and reads its messages back.

A contender gets a topic of one partition, a count and an interval. It sends each message's number
as its value, and returns each message's latency in seconds, from when it was due to be sent until
the consumer had it. So a client that falls behind its schedule is charged for the delay.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import aiokafka
import confluent_kafka
import kafka

from kdist import Consumer, Producer, TopicPartition

_WAIT_S = 30
Latency = Callable[[str, str, int, float], list[float]]


class _Clock:
    """When each message is due, and when it arrived."""

    def __init__(self, count: int, interval_s: float) -> None:
        self.begin_s = time.perf_counter() + 0.5  # both sides are connected by then
        self.count = count
        self.interval_s = interval_s
        self.came_s: dict[int, float] = {}

    def due_s(self, number: int) -> float:
        return self.begin_s + number * self.interval_s

    def came(self, value: bytes) -> bool:
        """Record the arrival of a message; whether it was the last."""
        self.came_s[int(value)] = time.perf_counter()
        return len(self.came_s) == self.count

    def sleep_until(self, number: int) -> None:
        left_s = self.due_s(number) - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)

    def latencies(self) -> list[float]:
        return [at_s - self.due_s(number) for number, at_s in self.came_s.items()]


def _paced(clock: _Clock, send: Callable[[bytes], object], read: Callable[[], None]) -> list[float]:
    reader = threading.Thread(target=read)
    reader.start()
    for number in range(clock.count):
        clock.sleep_until(number)
        send(b"%d" % number)
    reader.join(_WAIT_S)
    assert len(clock.came_s) == clock.count, "some messages did not come"
    return clock.latencies()


def kdist_latency(address: str, topic: str, count: int, interval_s: float) -> list[float]:
    """kdist: `send`, and iteration."""
    with (
        Producer(bootstrap_servers=address, acks="1", linger_ms=0) as producer,
        Consumer(address, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([TopicPartition(topic, 0)])
        producer.send(topic, b"-1").result(_WAIT_S)
        records = iter(consumer)
        next(records)
        clock = _Clock(count, interval_s)

        def read() -> None:
            any(clock.came(record.value) for record in records)

        return _paced(clock, lambda value: producer.send(topic, value), read)


def confluent_latency(address: str, topic: str, count: int, interval_s: float) -> list[float]:
    """confluent-kafka: `produce` and `poll`, and `poll`."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "acks": 1, "linger.ms": 0})
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "bench"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    producer.produce(topic, b"-1")
    producer.flush(_WAIT_S)
    assert consumer.poll(_WAIT_S)
    clock = _Clock(count, interval_s)

    def send(value: bytes) -> None:
        producer.produce(topic, value)
        producer.poll(0)

    def read() -> None:
        while not clock.came(consumer.poll(_WAIT_S).value()):
            pass

    try:
        return _paced(clock, send, read)
    finally:
        producer.flush(_WAIT_S)
        consumer.close()


def kafka_python_latency(address: str, topic: str, count: int, interval_s: float) -> list[float]:
    """kafka-python: `send`, and iteration."""
    producer = kafka.KafkaProducer(bootstrap_servers=address, acks=1, linger_ms=0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
    consumer.assign([kafka.TopicPartition(topic, 0)])
    producer.send(topic, b"-1").get(_WAIT_S)
    next(consumer)
    clock = _Clock(count, interval_s)

    def read() -> None:
        any(clock.came(record.value) for record in consumer)

    try:
        return _paced(clock, lambda value: producer.send(topic, value), read)
    finally:
        producer.close()
        consumer.close()


def aiokafka_latency(address: str, topic: str, count: int, interval_s: float) -> list[float]:
    """aiokafka: `send`, and iteration, on one loop."""

    async def run() -> list[float]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, auto_offset_reset="earliest"
        )
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, acks=1, linger_ms=0)
        async with consumer, producer:
            consumer.assign([aiokafka.TopicPartition(topic, 0)])
            await producer.send_and_wait(topic, b"-1")
            await consumer.getone()
            clock = _Clock(count, interval_s)

            async def read() -> None:
                async for record in consumer:
                    if clock.came(record.value):
                        return

            reading = asyncio.ensure_future(read())
            for number in range(count):
                await asyncio.sleep(clock.due_s(number) - time.perf_counter())
                await producer.send(topic, b"%d" % number)
            await asyncio.wait_for(reading, _WAIT_S)
            return clock.latencies()

    return asyncio.run(run())


# The first is the yardstick.
LATENCIES: Mapping[str, Latency] = {
    "confluent-kafka": confluent_latency,
    "kdist": kdist_latency,
    "aiokafka": aiokafka_latency,
    "kafka-python": kafka_python_latency,
}


def quantile(sample: Sequence[float], part: float) -> float:
    """A quantile of a sample: 0.5 is the median."""
    return sorted(sample)[min(len(sample) - 1, int(part * len(sample)))]
