"""Moves of partitions by `kafka-reassign-partitions`, and records that come in meanwhile."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from peer.kafka_peer import run_tool

from tests.integration.broker_processes import BrokerProcess
from tests.integration.replicated_topics import log_bytes

TOPIC = "moved"
PARTITIONS = 3
VALUE = b"x" * 1_000
MOVED_S = 60.0
RATE, COPIED = 50_000, 1_500_000  # bytes per second of a throttle; bytes of both replicas
TOOL_S = 20.0  # that the tool itself may take


class Moves:
    """A plan for `kafka-reassign-partitions`, and what that says of it."""

    def __init__(self, brokers: list[BrokerProcess], directory: Path) -> None:
        self._brokers = brokers
        self.addresses = ",".join(each.address for each in brokers)
        self._file = directory / "plan.json"

    def plan(self, *targets: list[int], topic: str = TOPIC) -> None:
        moves = [
            {"topic": topic, "partition": number, "replicas": target}
            for number, target in enumerate(targets)
        ]
        self._file.write_text(json.dumps({"version": 1, "partitions": moves}))

    def run(self, *words: str) -> str:
        return run_tool(
            "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
            *("--bootstrap-server", self.addresses, *words),
        )

    def run_on_plan(self, *words: str) -> str:
        return self.run("--reassignment-json-file", str(self._file), *words)

    def size_on(self, broker_id: int, partition: int) -> int:
        """How many bytes a broker has of a partition, as far as its files tell."""
        (broker,) = (each for each in self._brokers if each.id == broker_id)
        return len(log_bytes(broker.directory / f"{TOPIC}-{partition}"))

    def throttles(self) -> dict[str, str]:
        """What is set of them, for the topic and the brokers."""
        client = AdminClient({"bootstrap.servers": self.addresses})
        asked = [ConfigResource(ResourceType.TOPIC, TOPIC)]
        asked += [ConfigResource(ResourceType.BROKER, str(each.id)) for each in self._brokers]
        found = {each: client.describe_configs([each])[each].result(30) for each in asked}
        return {
            f"{resource.name} {name}": entry.value
            for resource, entries in found.items()
            for name, entry in entries.items()
            if "throttled" in name and not entry.is_default
        }

    def are_complete(self, count: int, *words: str) -> bool:
        said = self.run_on_plan(*(words or ("--verify", "--preserve-throttles")))
        return len(re.findall(r"Reassignment of partition \S+ is completed", said)) == count


class Load:
    """An idempotent producer's numbered records, all of which must be there in the end."""

    def __init__(self, addresses: str) -> None:
        self.count = 0
        self._failed: list[KafkaError] = []
        self._addresses = addresses
        self._producer = Producer(
            {
                "bootstrap.servers": addresses,
                "enable.idempotence": True,
                "linger.ms": 5,
                "on_delivery": lambda error, _: error and self._failed.append(error),
            }
        )

    def send(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._producer.produce(TOPIC, b"%d " % self.count + VALUE, partition=self.count % 3)
            self._producer.poll(0)
            self.count += 1
            time.sleep(0.002)

    def fill(self, count: int) -> None:
        """Send so many, as fast as they are taken."""
        for _ in range(count):
            self._producer.produce(TOPIC, b"%d " % self.count + VALUE, partition=self.count % 3)
            self._producer.poll(0)
            self.count += 1
        assert self.flush(60)

    def flush(self, within_s: float) -> bool:
        """Whether all are acknowledged in time."""
        return (self._producer.flush(within_s), self._failed) == (0, [])

    def check(self) -> None:
        assert self.flush(60)
        consumer = Consumer(
            {
                "bootstrap.servers": self._addresses,
                "group.id": "checker",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        found: list[int] = []
        end_s = time.monotonic() + MOVED_S
        while len(found) < self.count and time.monotonic() < end_s:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found.append(int(message.value().split()[0]))
        consumer.close()
        assert sorted(found) == list(range(self.count))


def replicas(moves: Moves, topic: str = TOPIC) -> dict[int, tuple[list[int], list[int]]]:
    """Of each partition the replicas in their order, and the ISR sorted."""
    found = AdminClient({"bootstrap.servers": moves.addresses}).list_topics(topic, timeout=10)
    partitions = found.topics[topic].partitions
    return {i: (each.replicas, sorted(each.isrs)) for i, each in partitions.items()}
