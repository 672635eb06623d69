"""The brokers that the suites run against: kdist's, or Apache Kafka's as a baseline.

`kdist(...)` starts a real ZooKeeper and brokers on loopback, each in its own process with its
output in `broker-<id>.out`; `apache(...)` starts brokers of Apache Kafka from the jars of `make
setup`. With three of them every partition has three replicas, of which two must be in sync. Run as
a script, the module starts either and stays up until SIGTERM, for suites that start their broker
themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import patience
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "integration")]

from peer.kafka_broker import KafkaBroker  # noqa: E402 - the line above is what finds it

from kdist.cli.standalone.zookeeper_server import (  # noqa: E402
    ServerSettings,
    ZooKeeperServer,
    start_server,
)
from kdist.runtime.disk import Disk  # noqa: E402

START_TIMEOUT_S = 40
STOP_TIMEOUT_S = 30
POLL_S = 0.05
APACHE_SESSION_S = 6
REPLICAS_MAX = 3
# Below the ephemeral range, so that no connection takes a broker's port before it is back.
PORTS = range(15_000, 30_000)

# Settings that suit all suites.
SETTINGS = {
    "num.partitions": "4",
    "auto.create.topics.enable": "true",
    "delete.topic.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "auto.leader.rebalance.enable": "false",  # so that the suites alone elect preferred leaders
    "log.cleaner.backoff.ms": "1000",  # librdkafka's 0077 waits for a compaction for 20 s
}


def settings_of(brokers: int) -> dict[str, str]:
    """The settings of each of so many brokers."""
    replicas = min(REPLICAS_MAX, brokers)
    return SETTINGS | {
        "default.replication.factor": str(replicas),
        "offsets.topic.replication.factor": str(replicas),
        "min.insync.replicas": str(max(1, replicas - 1)),
    }


class BrokerFailedError(Exception):
    """A broker failed to start or exited by itself. The text ends with the broker's output."""


class Member(Protocol):
    """A broker of a cluster, which a suite may kill and start again."""

    id: int
    address: str

    def kill(self) -> None:
        """End it as a crash would, and its session as its supervisor would."""

    def start(self) -> None:
        """Start it, on what it had."""


class Cluster(NamedTuple):
    """The bootstrap addresses. `check` raises `BrokerFailedError` if a broker exited by itself.

    `brokers` is empty if they were started by somebody else.
    """

    address: str
    check: Callable[[], None] = lambda: None
    brokers: Sequence[Member] = ()

    @property
    def replicas(self) -> int:
        """How many replicas a partition has."""
        return min(REPLICAS_MAX, len(self.address.split(",")))


def free_ports(count: int) -> list[int]:
    """Free ports, all different."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            break
    return found


@contextmanager
def kdist(
    directory: Path, brokers: int = 1, settings: Mapping[str, str] | None = None, port: int = 0
) -> Iterator[Cluster]:
    """ZooKeeper and `brokers` kdist brokers under `directory`, stopped cleanly in the end.

    The first broker listens on `port`, if given. Raises `BrokerFailedError`.
    """
    ports = free_ports(brokers)
    ports[0] = port or ports[0]
    processes: list[_Broker] = []
    with ExitStack() as stopping:  # all of them, also if one does not stop as it should
        zookeeper = stopping.enter_context(_zookeeper(directory))
        for broker_id, broker_port in enumerate(ports):  # from 0: kafka-python names that broker
            rows = settings_of(brokers) | dict(settings or {}) | {"zookeeper.connect": zookeeper}
            processes.append(_Broker(directory, broker_id, rows, broker_port))
            processes[-1].start()
            stopping.callback(processes[-1].stop)
        _await_members(processes, lambda: _check_all(processes))
        yield Cluster(_addresses(processes), lambda: _check_all(processes), processes)
        _check_all(processes)


@contextmanager
def apache(
    directory: Path, brokers: int = 1, settings: Mapping[str, str] | None = None, port: int = 0
) -> Iterator[Cluster]:
    """Apache Kafka 3.9, with the same settings: one broker with KRaft, several with ZooKeeper."""
    # The peer tests' short check interval would delete records here: the suites use old timestamps.
    rows = settings_of(brokers) | {
        "log.retention.check.interval.ms": "300000",
        "zookeeper.session.timeout.ms": str(APACHE_SESSION_S * 1000),
        **(settings or {}),
    }
    ports = free_ports(brokers)
    ports[0] = port or ports[0]
    with ExitStack() as stopping:
        zookeeper = stopping.enter_context(_zookeeper(directory)) if brokers > 1 else ""
        processes = [
            stopping.enter_context(
                _Apache(directory / f"kafka-{number}", number, rows, each, zookeeper)
            )
            for number, each in enumerate(ports, start=0 if zookeeper else 1)
        ]
        _await_members(processes)
        yield Cluster(_addresses(processes), brokers=processes)


@contextmanager
def _zookeeper(directory: Path) -> Iterator[str]:
    """The address of a ZooKeeper server of its own."""
    (directory / "zookeeper").mkdir(parents=True)
    (port,) = free_ports(1)
    settings = ServerSettings(str(directory / "zookeeper"), port, is_durable=False)
    server = asyncio.run(_start_zookeeper(settings))
    try:
        yield settings.address
    finally:
        asyncio.run(server.stop())


async def _start_zookeeper(settings: ServerSettings) -> ZooKeeperServer:
    server = await start_server(settings, Disk(), os.environ)
    try:
        await server.wait_until_ready()
    except BaseException:
        await server.kill()
        raise
    return server


class _Apache(KafkaBroker):
    """Apache Kafka on a port of the suite's choice."""

    def __init__(
        self, directory: Path, number: int, settings: Mapping[str, str], port: int, zookeeper: str
    ) -> None:
        super().__init__(directory, zookeeper=zookeeper, broker_id=number, **settings)
        self._wanted = f"127.0.0.1:{port}"

    def kill(self) -> None:
        """As a crash would, and wait until ZooKeeper has ended its session: nobody else does."""
        super().kill()
        time.sleep(APACHE_SESSION_S + 1)

    def _await_leaders(self, deadline: float) -> None:
        """Leave it to the suites, which may have killed whoever would lead."""

    def _write_properties(self) -> Path:
        path = super()._write_properties()
        path.write_text(path.read_text().replace(self.address, self._wanted))
        self.address = self._wanted
        return path


class _Broker:
    """One `kdist broker` process."""

    def __init__(
        self, directory: Path, number: int, settings: Mapping[str, str], port: int
    ) -> None:
        self.id = number
        self.address = f"127.0.0.1:{port}"
        self.name = f"broker-{number}"
        self._process: subprocess.Popen[bytes] | None = None  # none while it was killed
        self._output = directory / f"{self.name}.out"
        data = directory / self.name
        data.mkdir()
        here = f"PLAINTEXT://{self.address}"
        own = {
            "broker.id": str(number),
            "broker.host": f"machine-{number}",
            "log.dir": str(data),
            "listeners": here,
            "advertised.listeners": here,
        }
        self._file = directory / f"{self.name}.properties"
        rows = {**settings, **own}
        self._file.write_text("".join(f"{name}={value}\n" for name, value in rows.items()))

    def start(self) -> None:
        """Start it, on what it had."""
        with open(self._output, "ab") as output:
            self._process = subprocess.Popen(
                self._command("broker"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=ROOT,
            )

    def kill(self) -> None:
        """End it as a crash would, and its session as its supervisor would."""
        assert self._process is not None, "it runs"
        self._process.kill()
        self._process.wait()
        self._process = None
        subprocess.run(self._command("end-session"), check=True, capture_output=True, cwd=ROOT)

    def check(self) -> None:
        """Raise `BrokerFailedError` if the process has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            said = self._output.read_text(errors="replace")[-4000:]
            raise BrokerFailedError(
                f"{self.name} ended with status {self._process.returncode}:\n{said}"
            )

    def stop(self) -> None:
        """Stop the broker by SIGTERM, and kill it if it does not end in time."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(patience.scaled(STOP_TIMEOUT_S))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise BrokerFailedError(f"{self.name} did not stop on SIGTERM") from None

    def _command(self, command: str) -> list[str]:
        return [sys.executable, "-m", "kdist.cli", command, "--config", str(self._file)]


def _addresses(processes: Sequence[Member]) -> str:
    return ",".join(process.address for process in processes)


def _check_all(processes: Sequence[_Broker]) -> None:
    for process in processes:
        process.check()


def _await_members(processes: Sequence[Member], check: Callable[[], None] = lambda: None) -> None:
    """Wait until the last broker answers and its metadata lists all brokers."""
    deadline = time.monotonic() + patience.scaled(START_TIMEOUT_S)
    seen = 0
    while time.monotonic() < deadline:
        check()
        admin = AdminClient({"bootstrap.servers": processes[-1].address, "log_level": 0})
        try:
            seen = len(admin.list_topics(timeout=2).brokers)
        except KafkaException:
            seen = 0  # not listening yet; list_topics has waited
        if seen == len(processes):
            return
        time.sleep(POLL_S)
    raise BrokerFailedError(f"{seen} of {len(processes)} brokers came up in time")


def _serve() -> None:
    """Start the brokers that the command line asks for, print `ready`, wait for SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--product", choices=["kdist", "apache"], default="kdist")
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    settings = dict(row.split("=", 1) for row in given.set)
    start = apache if given.product == "apache" else kdist
    started = start(given.directory, given.brokers, settings, given.port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with started:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    _serve()
