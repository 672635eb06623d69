"""kdist's consumer on Apache Kafka 3.9: groups shared with Java's consumers, and transactions.

Java's members are Kafka's own console consumer, one process each; either side may be the leader.
"""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer
from peer.kafka_broker import KafkaBroker
from peer.kafka_peer import java_command

from kdist.client.consumer.consumer import Consumer
from kdist.model import TopicPartition
from tests.integration.consumer_members import HASTY, WAIT_S, Member, create, produce, until

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("kafka")]

JAVAS = {
    "range": "RangeAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka-consumer") / "broker") as broker:
        yield broker.address


@contextmanager
def java_member(address: str, topic: str, strategy: str, found: Counter[bytes]) -> Iterator[None]:
    """Kafka's console consumer as a member of the group that is called as the topic."""
    settings = {
        "auto.offset.reset": "earliest",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "200",
        "partition.assignment.strategy": f"org.apache.kafka.clients.consumer.{JAVAS[strategy]}",
    }
    words = [word for pair in settings.items() for word in ("--consumer-property", "=".join(pair))]
    process = subprocess.Popen(
        java_command(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", address, "--topic", topic, "--group", topic, *words),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    output = process.stdout

    def listen() -> None:
        for line in output:
            found[line.strip()] += 1

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield
    finally:
        process.terminate()
        process.wait(WAIT_S)
        listener.join(WAIT_S)


@pytest.mark.parametrize("strategy", JAVAS)
def test_a_group_is_shared_with_javas_consumers(kafka: str, strategy: str) -> None:
    topic = f"shared-{strategy}"
    create(kafka, topic, 6)
    found: Counter[bytes] = Counter()
    member = Member(kafka, topic, found, partition_assignment_strategy=strategy)
    until(lambda: member.share == 6)  # we lead
    with java_member(kafka, topic, strategy, found):
        until(lambda: member.share == 3)
        values = produce(kafka, topic, 1000)
        until(lambda: len(found) == len(values))
        member.stop()  # Java leads from here on
        another = Member(kafka, topic, found, partition_assignment_strategy=strategy)
        until(lambda: another.share == 3)
        values += produce(kafka, topic, 1000, start=1000)
        until(lambda: len(found) == len(values))
    until(lambda: another.share == 6)
    another.stop()
    assert set(found) == set(values)


def test_read_committed_leaves_out_what_was_aborted(kafka: str) -> None:
    create(kafka, "transactions", 1)
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": "t", "linger.ms": 1})
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce("transactions", b"%d" % number, partition=0)
        producer.flush(WAIT_S)
        if number % 2:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
    producer.begin_transaction()
    producer.produce("transactions", b"open", partition=0)
    producer.flush(WAIT_S)
    partition = TopicPartition("transactions", 0)
    try:
        for level, wanted in (
            ("read_committed", [0, 2, 4]),
            ("read_uncommitted", [0, 1, 2, 3, 4, 5]),
        ):
            with Consumer(kafka, isolation_level=level, auto_offset_reset="earliest") as consumer:
                consumer.assign([partition])
                (end,) = consumer.end_offsets([partition]).values()
                values: list[bytes] = []
                while consumer.position(partition) < end:
                    values += [record.value for record in consumer.poll(1)]
            kept = [b"%d" % number for number in wanted for _ in range(3)]
            assert values == (kept if level == "read_committed" else [*kept, b"open"])
    finally:
        producer.abort_transaction(WAIT_S)


def test_commits_are_kept_by_kafka_with_their_notes(kafka: str) -> None:
    create(kafka, "committed", 2)
    produce(kafka, "committed", 10, partition=1)
    settings = HASTY | {"group_id": "keepers"}
    with Consumer(kafka, **settings) as consumer:
        consumer.subscribe(["committed"])
        assert len(consumer.poll(WAIT_S, max_records=4)) == 4
    with Consumer(kafka, **settings) as consumer:
        consumer.subscribe(["committed"])
        assert consumer.poll(WAIT_S)[0].offset == 4
