"""Three brokers each of kdist and of Apache Kafka, every three with a ZooKeeper of its own.

All have their defaults, except that a session is as short with both. No broker is pinned to a core.
A host has one replica of a partition, so each broker of kdist calls its host by another name.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

sys.path += [str(Path(__file__).parents[1] / "tests" / "integration")]

import broker_world
import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from measuring import resident_bytes
from network_peers import free_port
from peer.kafka_broker import KafkaBroker

from kdist.zk import znodes

BROKERS = 3
REPLICATION = 3
IN_SYNC_MIN = 2
SETTLED_S = 120.0
_SESSION_TIMEOUT_MS = "6000"
_POLL_S = 0.02
_ANSWER_S = 10.0
# As in the start script of Kafka's server.
KAFKA_JVM = ("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
# Kafka's defaults, where those of the tests differ.
KAFKA_SETTINGS = {
    "num_io_threads": "8",
    "num_network_threads": "3",
    "log_initial_task_delay_ms": "30000",
    "log_retention_check_interval_ms": "300000",
    "log_cleaner_backoff_ms": "15000",
    "log_cleaner_dedupe_buffer_size": "134217728",
    "log_flush_offset_checkpoint_interval_ms": "60000",
    "log_flush_start_offset_checkpoint_interval_ms": "60000",
    "zookeeper_session_timeout_ms": _SESSION_TIMEOUT_MS,
}


class Member(Protocol):
    """One broker; it can be started again after `stop` or `kill`."""

    id: int
    data: Path
    """Its log directory."""

    @property
    def address(self) -> str: ...

    @property
    def pid(self) -> int: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


class KdistMember:
    """A `kdist broker`; of another checkout of kdist if `tree` is given."""

    def __init__(self, broker_id: int, directory: Path, connect: str, tree: Path | None) -> None:
        self.id = broker_id
        self.data = directory / "data"
        self.address = f"127.0.0.1:{free_port()}"
        self._tree = tree
        self._log = directory / "broker.log"
        self._config = directory / "broker.properties"
        directory.mkdir(parents=True)
        self._config.write_text(
            f"broker.id={broker_id}\nlog.dir={self.data}\nlisteners=PLAINTEXT://{self.address}\n"
            f"broker.host=host-{broker_id}\nzookeeper.connect={connect}\n"
            f"zookeeper.session.timeout.ms={_SESSION_TIMEOUT_MS}\n"
        )
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker does not run"
        return self._process.pid

    def start(self) -> None:
        """Start it, and return once it is ready."""
        self.data.mkdir(exist_ok=True)
        python = sys.executable if self._tree is None else str(self._tree / ".venv/bin/python")
        command = [python, "-m", "kdist.cli", "broker", "--config", str(self._config)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, text=True, cwd=self._tree
            )
        broker_world.wait_until_ready(self._process, self._log)

    def stop(self) -> None:
        """Shut down cleanly."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(SETTLED_S)

    def kill(self) -> None:
        """End as a crash of the process would."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(SETTLED_S)


class ReplicaState(NamedTuple):
    """A partition as the cluster's metadata has it."""

    partition: int
    leader: int
    isr: tuple[int, ...]


class Cluster:
    """Three running brokers of one kind."""

    def __init__(self, name: str, connect: str, members: list[Member]) -> None:
        self.name = name
        self.connect = connect
        self.members = members

    @property
    def address(self) -> str:
        """For `bootstrap.servers`."""
        return ",".join(each.address for each in self.members)

    def cpu_s(self) -> float:
        """CPU seconds of all brokers that run."""
        return sum(self.cpu_of(each) for each in self.members)

    def cpu_of(self, member: Member) -> float:
        """CPU seconds of all its threads, including those that have ended."""
        times = psutil.Process(member.pid).cpu_times()
        return float(times.user + times.system)

    def resident_bytes(self) -> int:
        """The resident memory of all brokers."""
        return sum(resident_bytes(each.pid) for each in self.members)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def create_topic(self, partitions: int) -> str:
        """A new topic, in which every replica is in sync; its name."""
        name = f"bench-{time.monotonic_ns()}"
        config = {"min.insync.replicas": str(IN_SYNC_MIN)}
        topic, admin = NewTopic(name, partitions, REPLICATION, config=config), self.admin()
        for created in admin.create_topics([topic], request_timeout=SETTLED_S).values():
            created.result(SETTLED_S)
        self.await_in_sync(name, partitions)
        return name

    def delete_topic(self, name: str) -> None:
        admin = self.admin()
        for deleted in admin.delete_topics([name], request_timeout=SETTLED_S).values():
            deleted.result(SETTLED_S)

    def states(self, topic: str) -> list[ReplicaState]:
        """The topic's partitions, once a broker tells them."""
        found: list[ReplicaState] = []

        def look() -> bool:
            found[:] = states_of(self.address, topic)
            return bool(found)

        settled(look)
        return found

    def await_in_sync(self, topic: str, partitions: int) -> None:
        """Wait until all replicas of all partitions are in sync, as every broker tells it."""
        for member in self.members:
            settled(lambda member=member: self._is_in_sync(member, topic, partitions))

    def _is_in_sync(self, member: Member, topic: str, partitions: int) -> bool:
        states = states_of(member.address, topic)
        return len(states) == partitions and all(len(each.isr) == REPLICATION for each in states)


def states_of(address: str, topic: str) -> list[ReplicaState]:
    """A topic's partitions, as the brokers at `address` know them; none if they do not answer."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    try:
        found = admin.list_topics(topic, timeout=_ANSWER_S).topics[topic]
    except KafkaException:
        return []
    return [ReplicaState(p.id, p.leader, tuple(p.isrs)) for p in found.partitions.values()]


def settled(look: Callable[[], bool]) -> None:
    """Wait until `look` finds what is waited for."""
    end_s = time.monotonic() + SETTLED_S
    while not look():
        assert time.monotonic() < end_s, "the cluster did not settle in time"
        time.sleep(_POLL_S)


@contextlib.contextmanager
def kafka_cluster(directory: Path) -> Iterator[Cluster]:
    """Three brokers of Apache Kafka 3.9."""
    directory.mkdir()
    with broker_world.zookeeper(directory / "zookeeper") as connect:
        members: list[Member] = [
            KafkaBroker(
                directory / f"broker-{number}",
                KAFKA_JVM,
                zookeeper=connect,
                broker_id=number,
                **KAFKA_SETTINGS,
            )
            for number in range(1, BROKERS + 1)
        ]
        with _running(members):
            yield Cluster("Apache Kafka", connect, members)


@contextlib.contextmanager
def kdist_cluster(directory: Path, tree: Path | None = None) -> Iterator[Cluster]:
    """Three brokers of kdist."""
    directory.mkdir()
    with broker_world.zookeeper(directory / "zookeeper") as connect:
        members: list[Member] = [
            KdistMember(number, directory / f"broker-{number}", connect, tree)
            for number in range(1, BROKERS + 1)
        ]
        with _running(members):
            yield Cluster("kdist" if tree is None else broker_world.OTHER, connect, members)


@contextlib.contextmanager
def _running(members: list[Member]) -> Iterator[None]:
    """Start all; whatever ends the measurement, nothing has to be stopped cleanly."""
    try:
        for each in members:
            each.start()
        yield
    finally:
        for each in members:
            each.kill()


def path_of(member: Member) -> str:
    """The znode of a broker's registration."""
    return znodes.BROKER.path(member.id)
