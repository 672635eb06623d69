"""What tests ask of brokers, through kcat and librdkafka's Python binding."""

from __future__ import annotations

import subprocess

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.broker_processes import BrokerProcess, settled


def kcat(broker: BrokerProcess, *arguments: str, given: str = "") -> list[str]:
    """The lines that kcat prints."""
    done = subprocess.run(
        ["kcat", "-b", broker.address, *arguments],
        input=given.encode(),
        capture_output=True,
        timeout=30,
        check=True,
    )
    return done.stdout.decode().splitlines()


def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def create(broker: BrokerProcess, name: str, partitions: int = 1, **config: str) -> None:
    new = NewTopic(name, partitions, 1, config={k.replace("_", "."): v for k, v in config.items()})
    client = admin(broker)  # kept: a client that goes takes its answers along
    client.create_topics([new])[name].result(20)


def delete(broker: BrokerProcess, name: str) -> None:
    client = admin(broker)
    client.delete_topics([name], operation_timeout=20)[name].result(20)


def produce(broker: BrokerProcess, topic: str, values: list[bytes], **config: object) -> None:
    """Produce, each value acknowledged."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 1, **config})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda e, _: e and failed.append(e))
    assert producer.flush(20) == 0
    assert failed == []


def consume(
    broker: BrokerProcess, topic: str, wanted: int, group: str, **config: object
) -> list[bytes]:
    """So many values, and their offsets committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **config,
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []

    def look() -> bool:
        for message in consumer.consume(500, 0.2):
            assert message.error() is None or message.error().retriable(), message.error()
            if message.error() is None:
                found.append(message.value())
        return len(found) >= wanted

    settled(look)
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def leaders(broker: BrokerProcess, topic: str) -> list[int]:
    """The leader of each partition, as this broker tells it."""
    alone = {"bootstrap.servers": broker.address, "allow.auto.create.topics": False}
    found = AdminClient(alone).list_topics(topic, timeout=10).topics[topic].partitions
    return [found[index].leader for index in sorted(found)]


def controller_of(broker: BrokerProcess) -> int:
    found: int = admin(broker).list_topics(timeout=10).controller_id
    return found
