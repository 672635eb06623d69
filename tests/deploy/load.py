"""A producer that keeps sending during a drill, and records what was acknowledged."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

_PAUSE_S = 0.005
_GIVES_UP_MS = 180_000
_END_S = 200.0
_READ_S = 30.0


@dataclass
class Promises:
    """The records acknowledged, by partition in the order sent, and those that failed."""

    acknowledged: dict[int, list[int]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))


class Load:
    """Numbered records to all partitions of a new topic in turn, with acks=all and idempotence.

    Use it as a context manager; `promises` are final after its end.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.topic = f"{topic}-{uuid.uuid4().hex[:8]}"  # so that a drill can be repeated
        self.partitions = partitions
        self.promises = Promises({number: [] for number in range(partitions)})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, name=f"load of {topic}")
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "delivery.timeout.ms": _GIVES_UP_MS,
                "reconnect.backoff.max.ms": 1000,
                "log_level": 0,
            }
        )

    def __enter__(self) -> Load:
        make_topic(self.bootstrap, self.topic, self.partitions)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(_END_S)
        self.promises.refused += ["never answered"] * left

    def _write(self) -> None:
        number = 0
        while not self._stop.wait(_PAUSE_S):
            partition = number % self.partitions
            self._producer.produce(
                self.topic, str(number), partition=partition, on_delivery=self._settle
            )
            self._producer.poll(0)
            number += 1

    def _settle(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.promises.refused.append(str(error))
            return
        partition, value = message.partition(), message.value()
        assert partition is not None
        assert isinstance(value, bytes)
        self.promises.acknowledged[partition].append(int(value))

    def acknowledged(self) -> int:
        """How many records have been acknowledged up to now."""
        return self.promises.count

    def assert_kept(self) -> None:
        """Assert that no record was refused, lost after its acknowledgement, or duplicated."""
        assert self.promises.refused == []
        assert self.promises.count > 0
        found = read_all(self.bootstrap, self.topic, self.partitions)
        for partition, sent in self.promises.acknowledged.items():
            values = [int(value) for value in found[partition]]
            lost = sorted(set(sent) - set(values))
            twice = [value for value, times in Counter(values).items() if times > 1]
            assert (lost, twice) == ([], []), f"{self.topic}-{partition}"
            assert values == sorted(values), f"{self.topic}-{partition} is out of order"


def make_topic(
    bootstrap: str, topic: str, partitions: int, settings: Mapping[str, str] | None = None
) -> None:
    """Create the topic with one replica per partition, unless it exists."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = NewTopic(topic, partitions, 1, config=dict(settings or {}))
    error = admin.create_topics([new])[topic].exception(timeout=30)
    if error is not None and error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
        raise error


def leaders(bootstrap: str, topic: str) -> dict[int, int]:
    """The broker that leads each partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return {number: partition.leader for number, partition in partitions.items()}


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
