"""One Apache Kafka broker in KRaft's combined mode, on free loopback ports, on any directory.

It can run with a ZooKeeper instead: as a member of a cluster, and it can then write the formats of
older releases (before KIP-724).
It is stopped as by an operator (`stop`, SIGTERM) or as by a crash (`kill`, SIGKILL), and can be
restarted on the same directory or a copy of it: ports may change, the cluster id stays.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from peer.kafka_peer import JUDGE, QUICK_JVM, java_command, run_tool

CLUSTER_ID = "kdistPeerTestsCluster0"  # a base64 uuid
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30

_OF_KRAFT = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "broker.session.timeout.ms": "2000",  # a killed broker may come back after this
    "broker.heartbeat.interval.ms": "400",
}

_PROTOCOLS = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"

# Small sizes and short intervals, so that rolling, cleaning and retention happen within a test.
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "num.io.threads": "2",
    "num.network.threads": "1",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "300",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "log.flush.start.offset.checkpoint.interval.ms": "500",
}


class KafkaBroker:
    """A broker over `directory`: in it its log directory `data`, its diagnostics `broker.log`."""

    def __init__(
        self,
        directory: Path,
        jvm: Sequence[str] = QUICK_JVM,
        release: str = JUDGE,
        zookeeper: str = "",
        broker_id: int = 1,
        port: int | None = None,
        listeners: Mapping[str, str] = MappingProxyType({}),
        **settings: str,
    ) -> None:
        self.directory = directory
        self.id = broker_id
        self._port = port  # the same after each start
        self._zookeeper = zookeeper
        self._jvm = jvm
        self._release = release
        self.data = directory / "data"
        self._settings = SETTINGS | {name.replace("_", "."): v for name, v in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        self._others = listeners  # beside PLAINTEXT: the security protocol by name
        self.addresses: dict[str, str] = {}  # of those
        self._diagnostics_start = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    def start(self) -> None:
        """Start, format the directory first if it is new, and return once the broker answers."""
        assert self._process is None, "the broker runs already"
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self._write_properties()
        if not self._zookeeper and not (self.data / "meta.properties").exists():
            words = ("format", "-t", CLUSTER_ID, "-c", str(properties))
            run_tool("kafka.tools.StorageTool", *words, release=self._release)
        with open(self.directory / "broker.log", "ab") as diagnostics:
            self._diagnostics_start = diagnostics.tell()
            self._process = subprocess.Popen(
                java_command("kafka.Kafka", str(properties), jvm=self._jvm, release=self._release),
                stdin=subprocess.DEVNULL,
                stdout=diagnostics,
                stderr=diagnostics,
                cwd=self.directory,
            )
        try:
            self._await_answer()
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The pid of the running broker."""
        assert self._process is not None, "the broker does not run"
        return self._process.pid

    def stop(self) -> None:
        """Shut down cleanly."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End as a crash of the process would."""
        self._end(signal.SIGKILL)

    def diagnostics(self) -> str:
        """The broker's log output since its last start."""
        said = (self.directory / "broker.log").read_bytes()
        return said[self._diagnostics_start :].decode()

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(how)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def _write_properties(self) -> Path:
        free_port, controller_port, *ports = _free_ports(2 + len(self._others))
        self.address = (
            f"127.0.0.{self.id}:{self._port or free_port}"  # a host of its own, for placement
        )
        listener, controller = f"PLAINTEXT://{self.address}", f"127.0.0.1:{controller_port}"
        protocols = _PROTOCOLS
        for (name, protocol), port in zip(self._others.items(), ports, strict=True):
            self.addresses[name] = f"127.0.0.{self.id}:{port}"
            listener += f",{name}://{self.addresses[name]}"
            protocols += f",{name}:{protocol}"
        settings = self._settings | {
            "log.dirs": str(self.data),
            "listeners": listener,
            "listener.security.protocol.map": protocols,
        }
        if self._zookeeper:
            settings |= {"broker.id": str(self.id), "zookeeper.connect": self._zookeeper}
        else:
            settings |= _OF_KRAFT | {
                "listeners": f"{listener},CONTROLLER://{controller}",
                "controller.quorum.voters": f"1@{controller}",
            }
        path = self.directory / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._port_open():
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError(f"Kafka ended while starting:\n{self.diagnostics()[-4000:]}")
            if time.monotonic() > deadline:
                raise AssertionError(f"Kafka did not start:\n{self.diagnostics()[-4000:]}")
            time.sleep(0.1)
        self._await_leaders(deadline)

    def _await_leaders(self, deadline: float) -> None:
        """Wait until each partition has a leader, so that a test's first request is served."""
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        while time.monotonic() < deadline:
            try:
                found = admin.list_topics(timeout=5)
            except KafkaException:
                continue  # the port is open but the broker is not yet: list_topics has waited
            partitions = [p for t in found.topics.values() for p in t.partitions.values()]
            if self.id in found.brokers and all(p.leader >= 0 for p in partitions):
                return
            time.sleep(0.05)
        raise AssertionError(f"Kafka's partitions got no leader:\n{self.diagnostics()[-4000:]}")

    def _port_open(self) -> bool:
        host, port = self.address.split(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0


def _free_ports(count: int) -> list[int]:
    """Free ports. All are bound until the last is found, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
