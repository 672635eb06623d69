"""Partitions are moved by Kafka's own tool, `kafka-reassign-partitions`, while records come in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.broker_processes import BrokerProcess, broker_processes, settled
from tests.integration.moved_by_tool import (
    COPIED,
    MOVED_S,
    PARTITIONS,
    RATE,
    TOOL_S,
    TOPIC,
    Load,
    Moves,
    replicas,
)


@pytest.fixture
def brokers(tmp_path: Path, connect: str) -> Iterator[list[BrokerProcess]]:
    with broker_processes(4, tmp_path, connect, offsets_topic_replication_factor="2") as started:
        yield started


@pytest.mark.timeout(600)
def test_kafkas_tool_moves_lists_and_verifies_under_load(
    brokers: list[BrokerProcess], tmp_path: Path
) -> None:
    moves = Moves(brokers, tmp_path)
    new = NewTopic(TOPIC, PARTITIONS, replica_assignment=[[1, 2], [2, 1], [1, 2]])
    client = AdminClient({"bootstrap.servers": moves.addresses})
    client.create_topics([new])[TOPIC].result(30)
    load = Load(moves.addresses)
    load.send(2)
    moves.plan([3, 4], [4, 3], [3, 1, 4])
    said = moves.run_on_plan("--execute")
    assert "Successfully started partition reassignments for moved-0,moved-1,moved-2" in said
    load.send(2)
    settled(lambda: moves.are_complete(3), MOVED_S)
    settled(
        lambda: (
            replicas(moves) == {0: ([3, 4], [3, 4]), 1: ([4, 3], [3, 4]), 2: ([3, 1, 4], [1, 3, 4])}
        )
    )
    assert "No partition reassignments found" in moves.run("--list")
    left = [brokers[i - 1].directory / name for i, name in ((1, "moved-0"), (2, "moved-2"))]
    settled(lambda: not any(each.exists() for each in left))

    moves.plan([1, 3], [1, 4], [1])
    moves.run_on_plan("--execute")
    load.send(2)
    settled(lambda: moves.are_complete(3), MOVED_S)
    settled(lambda: replicas(moves) == {0: ([1, 3], [1, 3]), 1: ([1, 4], [1, 4]), 2: ([1], [1])})
    load.check()


@pytest.mark.timeout(600)
def test_groups_go_on_while_their_offsets_move_to_more_replicas(
    brokers: list[BrokerProcess], tmp_path: Path
) -> None:
    moves = Moves(brokers, tmp_path)
    client = AdminClient({"bootstrap.servers": moves.addresses})
    client.create_topics([NewTopic(TOPIC, PARTITIONS, 2)])[TOPIC].result(30)
    load = Load(moves.addresses)
    load.send(1)
    load.check()
    settings = {"bootstrap.servers": moves.addresses, "group.id": "kept"}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 7)], asynchronous=False)
    before = replicas(moves, "__consumer_offsets")
    targets = [[1 + (n + k) % 4 for k in range(3)] for n in range(len(before))]
    moves.plan(*targets, topic="__consumer_offsets")
    moves.run_on_plan("--execute")
    settled(lambda: moves.are_complete(len(before)), MOVED_S)
    settled(lambda: [each for each, _ in replicas(moves, "__consumer_offsets").values()] == targets)

    def committed() -> int | None:
        try:  # it asks its last coordinator first, and tells that that is none any more
            (found,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise
            return None
        return int(found.offset)

    assert settled(committed) == 7
    consumer.close()


@pytest.mark.timeout(600)
def test_a_throttled_move_is_slow_then_fast_and_another_is_cancelled(
    brokers: list[BrokerProcess], tmp_path: Path
) -> None:
    moves = Moves(brokers, tmp_path)
    client = AdminClient({"bootstrap.servers": moves.addresses})
    new = NewTopic(TOPIC, PARTITIONS, replica_assignment=[[2, 1]] * PARTITIONS)
    client.create_topics([new])[TOPIC].result(30)
    load = Load(moves.addresses)
    load.fill(9_000)  # records, of a kilobyte
    moves.plan([3, 4], [2, 1], [2, 1])
    said = moves.run_on_plan("--execute", "--throttle", str(RATE))
    assert "The inter-broker throttle limit was set to 50000 B/s" in said
    begun_s = time.monotonic()
    settled(lambda: moves.size_on(3, 0) + moves.size_on(4, 0) > COPIED, MOVED_S)
    copied, took_s = moves.size_on(3, 0) + moves.size_on(4, 0), time.monotonic() - begun_s
    # The tool itself takes seconds, and a fetch may be of a megabyte.
    assert copied < RATE * (took_s + TOOL_S) + (2 << 20)
    assert "moved-0: replicas: 3,4,2,1. adding: 3,4. removing: 2,1." in moves.run("--list")
    load.send(1)  # who is in the ISR is not throttled
    assert load.flush(10)
    moves.run_on_plan("--execute", "--additional", "--throttle", "500000000")
    settled(lambda: moves.are_complete(3, "--verify"), MOVED_S)
    assert moves.throttles() == {}

    moves.plan([1, 2], [2, 1], [2, 1])
    moves.run_on_plan("--execute", "--throttle", "1000")
    settled(lambda: moves.size_on(1, 0) + moves.size_on(2, 0) > 0, MOVED_S)
    said = moves.run_on_plan("--cancel")
    assert "Successfully cancelled partition reassignment for: moved-0" in said
    settled(lambda: replicas(moves)[0] == ([3, 4], [3, 4]))
    settled(lambda: not (brokers[0].directory / "moved-0").exists())
    assert moves.throttles() == {}
    load.check()
