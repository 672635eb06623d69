"""Load that continues while its broker is killed: producers, a group, and their acknowledgements.

A `Writing` keeps what was acknowledged and where, a `Group` what it read and which commits were
acknowledged. Each runs a thread of its own until `stop`. Nothing is judged here but failures that
a client must not see while its broker comes and goes.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from peer.kafka_queries import watermarks

PARTITIONS = 3
BURST = 200  # records between two pauses of a writer
PAUSE_S = 0.02
VALUE_BYTES = 200
READ_S = 60.0  # brokers of Kafka start slowly where much else runs
QUIET = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}

Place = tuple[int, int]  # partition, offset


def place_of(message: Message) -> Place:
    """Where a record is."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


@dataclass
class Acknowledged:
    """What producers were promised: the value at each place."""

    values: dict[Place, bytes] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def note(self, error: KafkaError | None, message: Message) -> None:
        """As the callback of a delivery."""
        if error is not None:
            self.failed.append(str(error))
            return
        place = place_of(message)
        if place in self.values:
            self.failed.append(f"{place} was given to two records")
        self.values[place] = message.value()


class Writing:
    """Unique values to one topic with acks=all, retried until they are acknowledged."""

    def __init__(
        self, address: str, topic: str, is_idempotent: bool, *, burst: int = BURST
    ) -> None:
        self.topic = topic
        self._burst = burst
        self.acknowledged = Acknowledged()
        self.produced: dict[int, list[bytes]] = defaultdict(list)
        self.fatal: list[str] = []
        self._producer = Producer(
            {
                **QUIET,
                "bootstrap.servers": address,
                "acks": "all",
                "enable.idempotence": is_idempotent,
                "message.timeout.ms": 60_000,
                "linger.ms": 2,
                "retry.backoff.ms": 20,
                "error_cb": self._told,
            }
        )
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Produce no more, and wait for what was produced."""
        self._is_stopping.set()
        self._thread.join()
        left = self._producer.flush(60)
        if left:
            self.acknowledged.failed.append(f"{left} records had no answer")

    def _told(self, error: KafkaError) -> None:
        if error.fatal():
            self.fatal.append(str(error))

    def _run(self) -> None:
        number = 0
        while not self._is_stopping.wait(PAUSE_S):
            for _ in range(self._burst):
                self._produce(number)
                number += 1
            self._producer.poll(0)

    def _produce(self, number: int) -> None:
        partition = number % PARTITIONS
        value = (b"%s %d " % (self.topic.encode(), number)).ljust(VALUE_BYTES, b".")
        try:
            self._producer.produce(
                self.topic, value, partition=partition, on_delivery=self.acknowledged.note
            )
        except BufferError:  # the broker is down, and enough waits for it
            self._producer.poll(0.1)
            return
        self.produced[partition].append(value)


class Group:
    """A member of a group that commits what it has read, and remembers what commits said."""

    def __init__(self, address: str, group: str, topics: list[str]) -> None:
        self.topics = topics
        self.group = group
        self.seen: dict[str, dict[Place, bytes]] = {topic: {} for topic in topics}
        self.committed: dict[tuple[str, int], int] = {}
        self.refused: list[str] = []
        self._address = address
        self._is_stopping = threading.Event()
        self._consumer = Consumer(
            {
                **QUIET,
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "fetch.wait.max.ms": 50,
                "retry.backoff.ms": 20,
            }
        )
        self._consumer.subscribe(topics)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Leave the group."""
        self._is_stopping.set()
        self._thread.join()
        self._consumer.close()

    def positions(self) -> dict[tuple[str, int], int]:
        """What the coordinator has committed, asked by somebody else."""
        asker = Consumer({**QUIET, "bootstrap.servers": self._address, "group.id": self.group})
        try:
            asked = [TopicPartition(t, p) for t in self.topics for p in range(PARTITIONS)]
            told = asker.committed(asked, timeout=READ_S)
            return {(each.topic, each.partition): each.offset for each in told}
        finally:
            asker.close()

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            messages = self._consumer.consume(500, 0.1)
            for message in messages:
                self._take(message)
            if messages:
                self._commit()

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            if not error.retriable():
                self.refused.append(str(error))
            return
        place = place_of(message)
        known = self.seen[message.topic()].setdefault(place, message.value())
        if known != message.value():
            self.refused.append(f"{message.topic()} {place} was {known!r}: {message.value()!r}")

    def _commit(self) -> None:
        try:
            told = self._consumer.commit(asynchronous=False)
        except KafkaException:
            return  # nothing was promised; the next commit comes soon
        for each in told:
            if each.error is None:
                self.committed[each.topic, each.partition] = each.offset


def read_topic(address: str, topic: str, starts: dict[int, int]) -> dict[Place, bytes]:
    """Every record from `starts` (offsets by partition; all from the first) to the end there is."""
    reader = Consumer({**QUIET, "bootstrap.servers": address, "group.id": "nobody"})
    try:
        wanted, ends = [], {}
        for partition in range(PARTITIONS):
            at = TopicPartition(topic, partition, starts.get(partition, OFFSET_BEGINNING))
            first, ends[partition] = watermarks(reader, at, READ_S)
            if max(first, at.offset) < ends[partition]:
                wanted.append(at)
        reader.assign(wanted)
        return _read_until(reader, {at.partition: ends[at.partition] for at in wanted})
    finally:
        reader.close()


def _read_until(reader: Consumer, ends: dict[int, int]) -> dict[Place, bytes]:
    found: dict[Place, bytes] = {}
    give_up_s = time.monotonic() + READ_S
    while ends:
        assert time.monotonic() < give_up_s, f"no more records, and none up to {ends}"
        messages = reader.consume(2000, 0.1)
        if messages:
            give_up_s = time.monotonic() + READ_S
        for message in messages:
            partition, offset = place_of(message)
            error = message.error()
            assert error is None or error.retriable(), error
            if error is None and partition in ends:
                found[partition, offset] = message.value()
                if offset + 1 >= ends[partition]:
                    del ends[partition]
    return found


def grown(told: dict[Place, bytes], by: int) -> None:
    """Wait until there are `by` more of them than now."""
    target, give_up_s = len(told) + by, time.monotonic() + READ_S
    while len(told) < target:
        assert time.monotonic() < give_up_s, f"{len(told)} of {target} after {READ_S} s"
        time.sleep(0.005)
