"""A cluster of three brokers in which some are Apache Kafka 3.9, in ZooKeeper mode.

Each of Kafka's has a host of its own, as far as loopback addresses go: 127.0.0.1, 127.0.0.2, ...
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from confluent_kafka.admin import AdminClient
from peer.kafka_broker import KafkaBroker

from tests.integration.broker_processes import BrokerProcess, settled
from tests.integration.replicated_topics import ZnodesOfTopics, log_bytes, znodes_of
from tests.integration.zookeeper_server import PATIENT_TICK_MS, zookeeper_host

IDS = (1, 2, 3)
PATIENCE_S = 90.0  # a JVM on a busy machine
OFFSETS_PARTITIONS = 3

# Kafka's names, and kdist's.
SETTINGS = {
    "zookeeper_session_timeout_ms": "6000",
    "zookeeper_connection_timeout_ms": "30000",
    "replica_lag_time_max_ms": "4000",
    "offsets_topic_replication_factor": "3",
    "offsets_topic_num_partitions": str(OFFSETS_PARTITIONS),
    "controlled_shutdown_retry_backoff_ms": "500",
    "log_segment_bytes": "1100000",
    "leader_imbalance_check_interval_seconds": "3600",  # leaders move when the test says so
}
OF_KAFKA = {"inter_broker_protocol_version": "3.9"}


class Member(Protocol):
    """A broker of the cluster, of either kind."""

    id: int
    address: str

    @property
    def data(self) -> Path:
        """Its log directory."""
        ...

    def start(self) -> None: ...
    def stop(self) -> object: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def go_on(self) -> None: ...


class KafkaMember(KafkaBroker):
    """A broker of Apache Kafka."""

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class KdistMember(BrokerProcess):
    """A broker of kdist."""

    @property
    def data(self) -> Path:
        return self.directory

    def kill(self) -> None:
        self.end()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class MixedCluster:
    """The brokers by id, and those that a client may ask now."""

    def __init__(
        self, directory: Path, connect: str, kafkas: set[int], znodes: ZnodesOfTopics
    ) -> None:
        self.kafkas = kafkas
        self.znodes = znodes
        self.running: set[int] = set()
        self.members: dict[int, Member] = {
            each: KafkaMember(
                directory / f"kafka{each}",
                zookeeper=connect,
                broker_id=each,
                **SETTINGS,
                **OF_KAFKA,
            )
            if each in kafkas
            else KdistMember(each, directory, connect, **SETTINGS)
            for each in IDS
        }

    @property
    def kdists(self) -> set[int]:
        return set(IDS) - self.kafkas

    @property
    def addresses(self) -> str:
        """Of the brokers that run, for clients."""
        return ",".join(self.members[each].address for each in sorted(self.running))

    def start_all(self) -> None:
        with ThreadPoolExecutor() as pool:
            for _ in pool.map(self.start, IDS):
                pass

    def start(self, broker_id: int) -> None:
        """Start a broker; Kafka's fails as long as its last session is there."""
        if broker_id in self.kafkas:
            settled(lambda: not self.znodes.is_registered(broker_id), PATIENCE_S)
        self.members[broker_id].start()
        self.running.add(broker_id)

    def stop(self, broker_id: int) -> None:
        """SIGTERM: its leaders are moved before it ends."""
        self.running.discard(broker_id)
        self.members[broker_id].stop()

    def kill(self, broker_id: int) -> None:
        """kill -9."""
        self.running.discard(broker_id)
        self.members[broker_id].kill()

    def pause(self, broker_id: int) -> None:
        """SIGSTOP, until its session is over."""
        self.running.discard(broker_id)
        self.members[broker_id].pause()
        settled(lambda: not self.znodes.is_registered(broker_id), PATIENCE_S)

    def go_on(self, broker_id: int) -> None:
        self.members[broker_id].go_on()
        self.running.add(broker_id)

    def end(self) -> None:
        """Kill what runs."""
        for each in self.members.values():
            each.kill()

    def await_leaders_but(self, broker_id: int, topic: str) -> None:
        """Wait until the topic has leaders, and this broker is none of them."""
        gone = {broker_id, -1}
        settled(lambda: all(s.leader not in gone for s in self.znodes.states(topic)), PATIENCE_S)

    def settle(self, *topics: str) -> None:
        """Wait until all replicas of the topics are in sync."""
        for topic in topics:
            settled(lambda t=topic: self.znodes.are_in_sync(t, len(IDS)), PATIENCE_S)

    def move_controller(self, among: set[int]) -> None:
        """Have one of these brokers be the controller, and wait until all brokers know."""
        if self.znodes.controller() in among:
            return
        others = self.running - among
        for each in others:
            self.members[each].pause()
        try:
            self.znodes.end_controller()
            settled(lambda: self.znodes.controller() in among, PATIENCE_S)
        finally:
            for each in others:
                self.members[each].go_on()
        for each in self.running:
            client = AdminClient({"bootstrap.servers": self.members[each].address})
            settled(lambda c=client: self._knows_controller(c), PATIENCE_S)

    def _knows_controller(self, client: AdminClient) -> bool:
        told: int = client.list_topics(timeout=10).controller_id
        return told == self.znodes.controller()

    def places(self, partition: str) -> list[Path]:
        """The directories of a partition's replicas."""
        return [each.data / partition for each in self.members.values()]

    def await_equal_logs(self, partition: str) -> bytes:
        """The bytes of a partition that all replicas have in the end."""

        def look() -> list[bytes] | None:
            logs = [log_bytes(each) for each in self.places(partition)]
            return logs if all(each == logs[0] for each in logs) else None

        return settled(look)[0]


@contextmanager
def mixed_cluster(directory: Path, kafkas: set[int]) -> Iterator[MixedCluster]:
    """A running cluster in which these brokers are Apache Kafka's."""
    (directory / "zookeeper").mkdir()
    with (
        zookeeper_host(directory / "zookeeper", PATIENT_TICK_MS) as host,
        znodes_of(host.settings.address) as znodes,
    ):
        cluster = MixedCluster(directory, host.settings.address, kafkas, znodes)
        try:
            cluster.start_all()
            yield cluster
        finally:
            cluster.end()
