"""Two clusters, mirror processes between them, and a batch-by-batch comparison of partitions.

Only processes that were started here are signalled.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kdist.client.cluster import Cluster, parse_addresses
from kdist.client.fetch_once import fetch_at
from kdist.client.offsets import find_ranges
from kdist.errors import ApiError
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from kdist.network.network import AsyncioNetwork
from kdist.records.batch import HEADER_SIZE, BatchHeader, iter_headers
from tests.integration.broker_processes import BrokerProcess, settled
from tests.integration.cutting_proxy import CuttingProxy
from tests.integration.zookeeper_server import PATIENT_TICK_MS, free_port, zookeeper_host

QUIET = {"log_level": 0, "socket.timeout.ms": 5000}
STOPPED_S = 20.0
PARTITIONS = 3


@contextmanager
def two_clusters(directory: Path) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """Source and target: two clusters, each with one broker and its own ZooKeeper.

    The target has a second listener, which clients reach through the proxy of `proxied`.
    """
    places = [directory / name for name in ("dc1", "dc2")]
    for place in places:
        (place / "zookeeper").mkdir(parents=True)
    with (
        zookeeper_host(places[0] / "zookeeper", PATIENT_TICK_MS) as first,
        zookeeper_host(places[1] / "zookeeper", PATIENT_TICK_MS) as second,
    ):
        source = BrokerProcess(1, places[0], first.settings.address)
        target = BrokerProcess(1, places[1], second.settings.address)
        behind, link = free_port(), free_port()
        own = f"PLAINTEXT://{target.address}"
        target.settings["listeners"] = f"{own},LINK://127.0.0.1:{behind}"
        target.settings["advertised.listeners"] = f"{own},LINK://127.0.0.1:{link}"
        target.settings["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,LINK:PLAINTEXT"
        try:
            source.start()
            target.start()
            yield source, target
        finally:
            source.end()
            target.end()


@contextmanager
def proxied(broker: BrokerProcess) -> Iterator[tuple[CuttingProxy, str]]:
    """A proxy to the target, which can be cut, and the address to connect to."""
    behind, link = (
        int(broker.settings[name].rpartition(":")[2])
        for name in ("listeners", "advertised.listeners")
    )
    proxy = CuttingProxy(link, behind)
    try:
        yield proxy, f"127.0.0.1:{link}"
    finally:
        proxy.close()


class MirrorProcess:
    """A `kdist mirror` process with its settings file, which can be killed and started again."""

    def __init__(self, directory: Path, name: str, settings: Mapping[str, str]) -> None:
        self.file = directory / f"{name}.properties"
        self.log = directory / f"{name}.log"
        lines = {
            "mirror.refresh.interval.ms": "500",
            "mirror.commit.interval.ms": "100",
            "mirror.session.timeout.ms": "1500",
            **settings,
        }
        self.file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kdist.cli", "mirror", "--config", str(self.file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, "start it first"
        return self.process

    def kill(self) -> None:
        """Kill the process with SIGKILL, so that it cannot clean up."""
        self.running.kill()
        self.running.wait(STOPPED_S)

    def stop(self) -> int:
        self.running.terminate()
        return self.running.wait(STOPPED_S)

    @property
    def text(self) -> str:
        return self.log.read_text()

    def status(self) -> list[dict[str, Any]]:
        """The first flow's partitions, as `kdist mirror status --json` reports them."""
        done = kdist("mirror", "status", "--config", str(self.file), "--json")
        assert done.returncode == 0, done.stderr
        partitions: list[dict[str, Any]] = json.loads(done.stdout)["partitions"]
        return partitions

    def status_of(self, partition: int) -> dict[str, Any] | None:
        """The status of one partition; None if it is not listed."""
        return next((each for each in self.status() if each["partition"] == partition), None)


def kdist(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kdist.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def page_of(port: int, path: str) -> tuple[int, str]:
    """HTTP status and body of a page of a mirror; status 0 while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


@contextmanager
def ended(*mirrors: MirrorProcess) -> Iterator[None]:
    """Kill those of the mirrors that still run when the body ends."""
    try:
        yield
    finally:
        for each in mirrors:
            if each.process is not None and each.process.poll() is None:
                each.kill()


def flow(source: str, target: str, name: str = "f", **more: str) -> dict[str, str]:
    given = {"source": source, "target": target, **more}
    return {f"flow.{name}.{key.replace('_', '.')}": value for key, value in given.items()}


def create(address: str, topic: str, partitions: int, **settings: str) -> None:
    admin = AdminClient({**QUIET, "bootstrap.servers": address})
    named = {key.replace("_", "."): value for key, value in settings.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=named)])[topic].result(20)


def producer(address: str, **settings: Any) -> Producer:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer({**QUIET, "bootstrap.servers": address, "linger.ms": 5, **named})


class Held(NamedTuple):
    """A batch of a partition; `passed` leaves out what a mirror rewrites."""

    header: BatchHeader
    records: bytes

    @property
    def passed(self) -> tuple[Any, ...]:
        """Everything that must be equal on both sides, including the compressed records."""
        header = self.header
        times = (header.base_timestamp, header.max_timestamp)
        return (header.attributes, header.record_count, *times, self.records)


def batches_of(address: str, topic: str, partition: int) -> list[Held]:
    """Every batch of a partition."""
    key = TopicPartition(topic, partition)

    async def read(cluster: Cluster) -> list[Held]:
        at, end = (await find_ranges(cluster, [key]))[key]
        held: list[Held] = []
        while at < end:
            buffer = (await fetch_at(cluster, key, at)).buffer
            for position, header in iter_headers(buffer, may_end_partial=True):
                data = bytes(memoryview(buffer)[position : position + header.size])
                held.append(Held(header, data[HEADER_SIZE:]))
                at = header.next_offset
        return held

    return asked(address, read)


def asked(address: str, work: Any) -> Any:
    """The result of `work`, called with a client's cluster."""

    async def run() -> Any:
        network = AsyncioNetwork(asyncio.get_running_loop())
        cluster = Cluster(network, parse_addresses(address), ClientSettings("test"))
        try:
            return await work(cluster)
        finally:
            cluster.close()

    return asyncio.run(run())


def end_of(address: str, topic: str, partition: int) -> int:
    key = TopicPartition(topic, partition)

    async def read(cluster: Cluster) -> int:
        return (await find_ranges(cluster, [key]))[key].end

    return int(asked(address, read))


def await_ends(target: str, topic: str, ends: list[int]) -> None:
    """Wait until the log end offsets of the target's partitions are `ends`."""

    def look() -> bool:
        try:
            return [end_of(target, topic, number) for number in range(len(ends))] == ends
        except ApiError:  # the topic may not exist yet
            return False

    settled(look)


class Writing:
    """A thread that writes small compressed batches to all partitions until `stop`."""

    def __init__(self, address: str, topic: str) -> None:
        self.count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, args=(address, topic))
        self._thread.start()

    def _write(self, address: str, topic: str) -> None:
        to = producer(address, **{"compression.type": "lz4", "enable.idempotence": True})
        while not self._stop.is_set():
            number = self.count
            value = f"{number} ".encode() * (1 + number % 40)
            to.produce(topic, value, str(number % 17), partition=number % PARTITIONS)
            self.count += 1
            if number % 50 == 0:
                to.flush(10)
        assert to.flush(20) == 0

    def stop(self) -> int:
        """Stop writing; return how many records were written."""
        self._stop.set()
        self._thread.join()
        return self.count


def copied(address: str, topic: str, partitions: int = PARTITIONS) -> int:
    """How many records a topic has; 0 if it does not exist yet."""
    try:
        return sum(end_of(address, topic, each) for each in range(partitions))
    except ApiError:
        return 0


def await_more(address: str, topic: str, records: int) -> None:
    wanted = copied(address, topic) + records
    settled(lambda: copied(address, topic) >= wanted)


def assert_same(source: str, target: str, topic: str) -> None:
    """Assert that both topics have the same batches, with byte-identical compressed records."""
    for partition in range(PARTITIONS):
        before = batches_of(source, topic, partition)
        after = batches_of(target, topic, partition)
        assert [each.passed for each in after] == [each.passed for each in before]
        assert len(before) > 100
