"""Queries of a running Kafka that kdist's storage must answer alike: records, offsets by time."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from peer.kafka_broker import KafkaBroker
from peer.kafka_workload import PARTITIONS, START_MS, TOPICS, WAIT_S, HeaderList

GONE = {"deleted-topic"}
_PAUSE_S = 0.1


class Read(NamedTuple):
    """A record as a consumer got it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: HeaderList


class Asked(Protocol):
    """A broker of either kind."""

    @property
    def address(self) -> str: ...


class Answers(NamedTuple):
    """By partition directory: start and end offset, and the offset for each of some timestamps."""

    offsets: dict[str, tuple[int, int]]
    offset_for_times: dict[str, dict[int, int | None]]


def ask(broker: KafkaBroker) -> Answers:
    """Start and end offsets of all partitions, and where timestamps all over them are found."""
    consumer = _consumer(broker)
    partitions = [
        TopicPartition(topic, number)
        for topic in TOPICS
        if topic not in GONE
        for number in range(PARTITIONS.get(topic, 1))
    ]
    offsets = {
        f"{each.topic}-{each.partition}": watermarks(consumer, each, WAIT_S) for each in partitions
    }
    times: dict[str, dict[int, int | None]] = {name: {} for name in offsets}
    for timestamp in _timestamps():
        wanted = [TopicPartition(each.topic, each.partition, timestamp) for each in partitions]
        for found in consumer.offsets_for_times(wanted, timeout=WAIT_S):
            assert found.error is None
            # Negative, the client's word for the end of the log: no record is as young.
            offset = found.offset if found.offset >= 0 else None
            times[f"{found.topic}-{found.partition}"][timestamp] = offset
    consumer.close()
    return Answers(offsets, times)


def watermarks(consumer: Consumer, partition: TopicPartition, wait_s: float) -> tuple[int, int]:
    """Start and end of a partition, asked until its leader answers, for up to `wait_s`.

    librdkafka asks the leader that it knows, once: one that has just moved is an error.
    """
    deadline_s = time.monotonic() + wait_s
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            return consumer.get_watermark_offsets(partition, timeout=max(left_s, _PAUSE_S))
        except KafkaException:
            if left_s <= 0:
                raise
            time.sleep(_PAUSE_S)


def read_all(broker: Asked, partition: TopicPartition) -> list[Read]:
    """Every record of a partition from its start to its end, aborted transactions' too."""
    consumer = _consumer(broker)
    start, _ = watermarks(consumer, partition, WAIT_S)
    consumer.assign([TopicPartition(partition.topic, partition.partition, start)])
    records: list[Read] = []
    while True:
        message = consumer.poll(WAIT_S)
        assert message is not None, (
            f"Kafka stopped serving {partition} after {len(records)} records"
        )
        if error := message.error():
            assert error.code() == KafkaError._PARTITION_EOF, error
            break
        records.append(_read(message))
    consumer.close()
    return records


def _read(message: Message) -> Read:
    offset, headers = message.offset(), cast(HeaderList, message.headers() or [])
    assert offset is not None
    return Read(offset, message.timestamp()[1], message.key(), message.value(), headers)


def _timestamps() -> list[int]:
    """Before, between, at, and after the timestamps of the records; 0 is before everything."""
    inside = range(START_MS - 5, START_MS + 15_000, 497)
    return [0, START_MS, *inside, START_MS + 14_990, START_MS + 14_991]


def _consumer(broker: Asked) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "peer-queries",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
        }
    )
