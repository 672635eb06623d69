"""Three brokers, real disks and sockets, and clients that nobody here wrote: leaders come and go.

Nothing that was acknowledged is lost, nothing is there twice, and the replicas' logs are the same.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import NewTopic
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.integration.broker_clients import admin
from tests.integration.broker_processes import BrokerProcess, broker_processes, settled
from tests.integration.fire_load import PARTITIONS, Group, Writing, grown, read_topic
from tests.integration.load_checks import group_saw_all, holds, is_dense, is_once_and_in_order
from tests.integration.replicated_topics import ZnodesOfTopics, log_bytes, znodes_of

IDS = (1, 2, 3)
LOADED, PLAIN = "loaded", "plain"
BATCH = 200  # records that kafka-python sends after each fault


class Cluster(NamedTuple):
    """The brokers, and what ZooKeeper has of them."""

    brokers: list[BrokerProcess]
    znodes: ZnodesOfTopics

    @property
    def addresses(self) -> str:
        return ",".join(each.address for each in self.brokers)

    def others(self, gone: BrokerProcess) -> str:
        """Where to bootstrap: kafka-python spends all its time on one that is silent."""
        return ",".join(each.address for each in self.brokers if each is not gone)

    def leader(self) -> BrokerProcess:
        """The leader of the first partition under load."""
        return self.brokers[self.znodes.states(LOADED)[0].leader - 1]

    def settle(self) -> None:
        """Wait until all replicas are in sync."""
        for topic in (LOADED, PLAIN):
            settled(lambda topic=topic: self.znodes.are_in_sync(topic, len(IDS)))

    def await_other_leaders(self, gone: BrokerProcess) -> None:
        settled(lambda: all(each.leader != gone.id for each in self.znodes.states(LOADED)))


@pytest.fixture
def cluster(tmp_path: Path, connect: str) -> Iterator[Cluster]:
    with (
        broker_processes(
            3,
            tmp_path,
            connect,
            zookeeper_session_timeout_ms="4000",
            log_segment_bytes="1100000",
            offsets_topic_replication_factor="3",
        ) as brokers,
        znodes_of(connect) as znodes,
    ):
        topics = [
            NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"})
            for name in (LOADED, PLAIN)
        ]
        client = admin(brokers[0])
        for made in client.create_topics(topics).values():
            made.result(20)
        yield Cluster(brokers, znodes)


@pytest.mark.timeout(240)
def test_what_was_acknowledged_outlives_each_leader(cluster: Cluster) -> None:
    writing = Writing(cluster.addresses, LOADED, True)
    group = Group(cluster.addresses, "readers", [LOADED])
    sent: list[bytes] = []
    try:
        for fault in (kill, pause, stop):
            grown(writing.acknowledged.values, 1000)
            fault(cluster, writing, sent)
    finally:
        writing.stop()
        group_saw_all(group, [writing])
    assert (writing.acknowledged.failed, writing.fatal, group.refused) == ([], [], [])
    found = read_topic(cluster.addresses, LOADED, {})
    holds(found, writing.acknowledged.values)
    is_dense(found)
    is_once_and_in_order(found, writing)
    assert read_by_kafka_python(cluster) == sorted(sent)
    replicas_are_equal(cluster)


def kill(cluster: Cluster, writing: Writing, sent: list[bytes]) -> None:
    """kill -9, then a start while its session is still there."""
    leader = cluster.leader()
    leader.stop(signal.SIGKILL)
    cluster.await_other_leaders(leader)
    sent += send_by_kafka_python(cluster.others(leader), "after the kill")
    grown(writing.acknowledged.values, 1000)
    leader.start()
    cluster.settle()


def pause(cluster: Cluster, writing: Writing, sent: list[bytes]) -> None:
    """SIGSTOP for longer than its session: it goes on as if it still led."""
    leader = cluster.leader()
    leader.process.send_signal(signal.SIGSTOP)
    cluster.await_other_leaders(leader)
    sent += send_by_kafka_python(cluster.others(leader), "during the pause")
    grown(writing.acknowledged.values, 1000)
    leader.process.send_signal(signal.SIGCONT)
    cluster.settle()


def stop(cluster: Cluster, writing: Writing, sent: list[bytes]) -> None:
    """SIGTERM: its leaders are moved before it ends."""
    leader = cluster.leader()
    assert leader.stop() == 0
    cluster.await_other_leaders(leader)
    sent += send_by_kafka_python(cluster.others(leader), "after the stop")
    grown(writing.acknowledged.values, 1000)
    leader.start()
    cluster.settle()


def send_by_kafka_python(addresses: str, when: str) -> list[bytes]:
    """Values that all in-sync replicas have."""
    producer = KafkaProducer(
        bootstrap_servers=addresses, acks="all", retries=50, enable_idempotence=True
    )
    values = [f"{when} {number}".encode() for number in range(BATCH)]
    for answer in [producer.send(PLAIN, value) for value in values]:
        answer.get(30)
    producer.close()
    return values


def read_by_kafka_python(cluster: Cluster) -> list[bytes]:
    """Everything, sorted."""
    reader = KafkaConsumer(bootstrap_servers=cluster.addresses, auto_offset_reset="earliest")
    partitions = [TopicPartition(PLAIN, number) for number in range(PARTITIONS)]
    reader.assign(partitions)
    left = sum(reader.end_offsets(partitions).values())
    found: list[bytes] = []

    def look() -> bool:
        for records in reader.poll(500).values():
            found.extend(each.value for each in records)
        return len(found) >= left

    settled(look)
    reader.close()
    return sorted(found)


def replicas_are_equal(cluster: Cluster) -> None:
    """Each partition's logs have the same bytes."""
    for topic in (LOADED, PLAIN):
        for number in range(PARTITIONS):
            places = [each.directory / f"{topic}-{number}" for each in cluster.brokers]
            logs = settled(lambda places=places: same(places))
            assert logs, f"{topic}-{number} is empty"


def same(places: list[Path]) -> bytes | None:
    """The bytes that all have; None as long as they differ: a follower may still be fetching."""
    first, *others = map(log_bytes, places)
    return first if all(each == first for each in others) else None
