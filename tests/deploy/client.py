"""Single calls of a foreign client: topics and their replicas, one record, all of a topic."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

DEFAULT = -1  # as many replicas as the brokers' settings say
_CALL_S = 30
_READ_S = 30.0


class Replicas(NamedTuple):
    """A partition's replicas by the ids of their brokers; the leader is -1 if there is none."""

    partition: str
    leader: int
    assigned: frozenset[int]
    isr: frozenset[int]


def make_topic(
    bootstrap: str,
    topic: str,
    partitions: int,
    replicas: int = DEFAULT,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Create the topic, unless it exists."""
    new = NewTopic(topic, partitions, replicas, config=dict(settings or {}))
    admin = _admin(bootstrap)
    error = admin.create_topics([new])[topic].exception(timeout=_CALL_S)
    if error is not None and error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
        raise error


def leaders(bootstrap: str, topic: str) -> dict[int, int]:
    """The broker that leads each partition."""
    partitions = _admin(bootstrap).list_topics(topic, timeout=_CALL_S).topics[topic].partitions
    return {number: partition.leader for number, partition in partitions.items()}


def all_replicas(bootstrap: str) -> list[Replicas]:
    """The replicas of every partition of every topic, Kafka's own included."""
    topics = _admin(bootstrap).list_topics(timeout=_CALL_S).topics
    return [
        Replicas(f"{name}-{number}", each.leader, frozenset(each.replicas), frozenset(each.isrs))
        for name, topic in topics.items()
        for number, each in topic.partitions.items()
    ]


def setting_s(bootstrap: str, broker: int, name: str) -> float:
    """A broker's setting of milliseconds, in seconds."""
    admin, resource = _admin(bootstrap), ConfigResource(ConfigResource.Type.BROKER, str(broker))
    found = admin.describe_configs([resource])[resource].result(timeout=_CALL_S)
    return int(found[name].value) / 1000


def out_of_sync(replicas: Collection[Replicas]) -> list[Replicas]:
    """Those without a leader, or without all of their replicas in the ISR (pure)."""
    return [each for each in replicas if each.leader < 0 or each.isr != each.assigned]


def crowded(replicas: Collection[Replicas], racks: Mapping[int, str]) -> Iterator[Replicas]:
    """Those with two replicas in one rack though another rack has none (pure)."""
    count = len(set(racks.values()))
    for each in replicas:
        if len({racks[broker] for broker in each.assigned}) < min(len(each.assigned), count):
            yield each


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[int, list[bytes]]:
    """All values of a topic, by partition; each must be readable to its end."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "drill",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    consumer = Consumer(settings)
    found: dict[int, list[bytes]] = {number: [] for number in range(partitions)}
    unread = set(found)
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in found])
        while unread:
            message = consumer.poll(_READ_S)
            assert message is not None, f"{topic}: nothing of {sorted(unread)} for {_READ_S:g} s"
            _take(message, found, unread)
    finally:
        consumer.close()
    return found


def _take(message: Message, found: dict[int, list[bytes]], unread: set[int]) -> None:
    partition, error = message.partition(), message.error()
    assert partition is not None
    if error is None:
        value = message.value()
        assert isinstance(value, bytes)
        found[partition].append(value)
    elif error.code() == KafkaError._PARTITION_EOF:
        unread.discard(partition)
    else:
        raise AssertionError(str(error))


def produce_one(address: str, topic: str, partition: int, size: int = 4) -> str | None:
    """Write one record with acks=all and no retry; the error if it was refused, else None."""
    outcome: list[KafkaError | None] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "acks": "all",
        "retries": 0,
        "message.timeout.ms": 5000,
        "log_level": 0,
    }
    producer = Producer(settings)
    producer.produce(
        topic, b"x" * size, partition=partition, on_delivery=lambda error, _: outcome.append(error)
    )
    producer.flush(10)
    return outcome[0].name() if outcome[0] is not None else None
