"""The brokers that the suites run against: kdist's, or Apache Kafka's as a baseline.

`kdist(...)` starts a real ZooKeeper and brokers on loopback, each in its own process with its
output in `broker-<id>.out`; `apache(...)` starts one Apache Kafka broker from the jars of `make
setup`. Run as a script, the module starts either and stays up until SIGTERM, for suites that start
their broker themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

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

# Settings that suit all suites. Replication factor 1 for now: min(3, brokers) once it is supported.
SETTINGS = {
    "num.partitions": "4",
    "auto.create.topics.enable": "true",
    "delete.topic.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.replication.factor": "1",
}


class BrokerFailedError(Exception):
    """A broker failed to start or exited by itself. The text ends with the broker's output."""


class Cluster(NamedTuple):
    """The bootstrap addresses. `check` raises `BrokerFailedError` if a broker exited by itself."""

    address: str
    check: Callable[[], None] = lambda: None


def free_ports(count: int) -> list[int]:
    """Free ports. All are bound until the last is found, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@contextmanager
def kdist(
    directory: Path, brokers: int = 1, settings: Mapping[str, str] | None = None, port: int = 0
) -> Iterator[Cluster]:
    """ZooKeeper and `brokers` kdist brokers under `directory`, stopped cleanly in the end.

    The first broker listens on `port`, if given. Raises `BrokerFailedError`.
    """
    zookeeper_port, *ports = free_ports(1 + brokers)
    ports[0] = port or ports[0]
    (directory / "zookeeper").mkdir(parents=True)
    zookeeper = ServerSettings(str(directory / "zookeeper"), zookeeper_port, is_durable=False)
    processes: list[_Broker] = []
    with ExitStack() as stopping:  # all of them, also if one does not stop as it should
        server = asyncio.run(_start_zookeeper(zookeeper))
        stopping.callback(lambda: asyncio.run(server.stop()))
        for broker_id, broker_port in enumerate(ports):  # from 0: kafka-python names that broker
            own = {"broker.id": str(broker_id), "zookeeper.connect": zookeeper.address}
            rows = SETTINGS | own | dict(settings or {})
            processes.append(_Broker(directory, rows, broker_port))
            stopping.callback(processes[-1].stop)
        _await_members(processes)
        addresses = ",".join(process.address for process in processes)
        yield Cluster(addresses, lambda: _check_all(processes))
        _check_all(processes)


@contextmanager
def apache(
    directory: Path, settings: Mapping[str, str] | None = None, port: int = 0
) -> Iterator[Cluster]:
    """One Apache Kafka 3.9, with the same settings."""
    # The peer tests' short check interval would delete records here: the suites use old timestamps.
    rows = SETTINGS | {"log.retention.check.interval.ms": "300000"} | dict(settings or {})
    with _Apache(directory, port or free_ports(1)[0], rows) as broker:
        yield Cluster(broker.address)


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

    def __init__(self, directory: Path, port: int, settings: Mapping[str, str]) -> None:
        super().__init__(directory, **settings)
        self._wanted = f"127.0.0.1:{port}"

    def _write_properties(self) -> Path:
        path = super()._write_properties()
        path.write_text(path.read_text().replace(self.address, self._wanted))
        self.address = self._wanted
        return path


class _Broker:
    """One `kdist broker` process."""

    def __init__(self, directory: Path, settings: Mapping[str, str], port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.name = f"broker-{settings['broker.id']}"
        self._output = directory / f"{self.name}.out"
        data = directory / self.name
        data.mkdir()
        here = f"PLAINTEXT://{self.address}"
        rows = {**settings, "log.dir": str(data), "listeners": here, "advertised.listeners": here}
        configuration = directory / f"{self.name}.properties"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in rows.items()))
        with open(self._output, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kdist.cli", "broker", "--config", str(configuration)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=ROOT,
            )

    def check(self) -> None:
        """Raise `BrokerFailedError` if the process has ended."""
        if self._process.poll() is not None:
            said = self._output.read_text(errors="replace")[-4000:]
            raise BrokerFailedError(
                f"{self.name} ended with status {self._process.returncode}:\n{said}"
            )

    def stop(self) -> None:
        """Stop the broker by SIGTERM, and kill it if it does not end in time."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(patience.scaled(STOP_TIMEOUT_S))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise BrokerFailedError(f"{self.name} did not stop on SIGTERM") from None


def _check_all(processes: Sequence[_Broker]) -> None:
    for process in processes:
        process.check()


def _await_members(processes: Sequence[_Broker]) -> None:
    """Wait until the first broker answers and its metadata lists all brokers."""
    deadline = time.monotonic() + patience.scaled(START_TIMEOUT_S)
    seen = 0
    while time.monotonic() < deadline:
        _check_all(processes)
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
    if given.product == "apache":
        started = apache(given.directory, settings, given.port)
    else:
        started = kdist(given.directory, given.brokers, settings, given.port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with started:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    _serve()
