"""docs/guides/from-kafka.md as it stands: a cluster of Apache Kafka becomes one of kdist, and back.

Its blocks run in order, under the load of a foreign idempotent producer and a group; each step is
taken back once, and done again. The addresses of the page are replaced by loopback ones, and
`ssh HOST systemctl start|stop` by the processes of this test.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from peer.kafka_peer import java_command
from peer.kafka_queries import Read, read_all

from tests.integration.fire_load import PARTITIONS, QUIET, Group, Writing, grown
from tests.integration.load_checks import judge
from tests.integration.mixed_cluster import (
    OF_KAFKA,
    PATIENCE_S,
    SETTINGS,
    KafkaMember,
    KdistMember,
    Member,
)
from tests.integration.page_commands import blocks_of, environment, run_block
from tests.integration.replicated_topics import ZnodesOfTopics, log_bytes, znodes_of
from tests.integration.zookeeper_server import (
    PATIENT_SESSION_TIMEOUT_MS,
    PATIENT_TICK_MS,
    free_port,
    zookeeper_host,
)

pytestmark = [pytest.mark.peer, pytest.mark.stress]

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "from-kafka.md"
KAFKAS, KDISTS = (1, 2), (11, 12)
CONTROLLER = 2  # the last that the page stops
STOPPING = 6  # the step in which it does
FIRST, BACK = "\nid=1", "**Back**"
TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
STILL, LOADED = "clicks", "orders"
START_MS = 1_700_000_000_000
BURST = 5  # records of the producer, every 20 ms or so
OWN_SETTINGS = {
    **SETTINGS,
    **OF_KAFKA,
    "min_insync_replicas": "2",
    "offsets_topic_replication_factor": "2",
    "zookeeper_session_timeout_ms": str(PATIENT_SESSION_TIMEOUT_MS),
    "replica_lag_time_max_ms": "30000",
}
POSITIONS = {0: 7, 1: 0, 2: 13}  # of the group that is away


class Site:
    """The page's hosts: what its commands mean here."""

    def __init__(self, directory: Path, connect: str, znodes: ZnodesOfTopics) -> None:
        self.directory = directory
        self.znodes = znodes
        self.port = _port_of_all()
        self.members: dict[int, Member] = {
            each: KafkaMember(
                directory / f"kafka{each}",
                zookeeper=connect,
                broker_id=each,
                port=self.port,
                **OWN_SETTINGS,
            )
            for each in KAFKAS
        }
        self._connect = connect
        self._around = environment(directory, self.port)
        tool = directory / "bin" / "kafka-reassign-partitions.sh"
        tool.write_text(
            f'#!/bin/sh\nexec {" ".join(java_command(TOOL))} "$@"\n'.replace("*", "\\*")
        )
        tool.chmod(0o755)

    def addresses(self, among: tuple[int, ...]) -> str:
        return ",".join(f"127.0.0.{each}:{self.port}" for each in among)

    def start(self, broker_id: int) -> None:
        self.members[broker_id].start()

    def end(self) -> None:
        for each in self.members.values():
            each.kill()

    def run(self, command: str, expected: str = "") -> None:
        """A block of the page, with this test's addresses and paths."""
        command = command.replace("10.0.0.", "127.0.0.").replace(":9092", f":{self.port}")
        command = command.replace("/data/d01/kdist", f"{self.directory}/d$id")
        properties = self.directory / "kafka1" / "server.properties"
        command = command.replace("/etc/kafka/server.properties", str(properties))
        script = []
        for line in command.splitlines():
            if found := re.fullmatch(r"ssh \S+\.(\d+) systemctl (start|stop) (kafka|kdist)", line):
                assert not script, "what comes before is not to be run after it"
                self._systemctl(int(found[1]), found[2])
            else:
                script.append(line)
            if found := re.fullmatch(r"export (\w+)=(.*)", line):
                self._around[found[1]] = found[2]
        run_block("\n".join(script), expected, self.directory, self._around)

    def _systemctl(self, broker_id: int, what: str) -> None:
        if what == "stop":
            self.members[broker_id].stop()
            return
        if broker_id not in self.members:
            self.members[broker_id] = self._kdist(broker_id)
        self.start(broker_id)

    def _kdist(self, broker_id: int) -> KdistMember:
        lines = (self.directory / f"broker-{broker_id}.properties").read_text().splitlines()
        settings = dict(each.split("=", 1) for each in lines)
        return KdistMember(broker_id, self.directory, self._connect, **settings)


def _port_of_all() -> int:
    """A port that is free on every broker's address."""
    while True:
        port = free_port()
        probes = [socket.socket() for _ in (*KAFKAS, *KDISTS)]
        try:
            for each, probe in zip((*KAFKAS, *KDISTS), probes, strict=True):
                probe.bind((f"127.0.0.{each}", port))
            return port
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "zookeeper").mkdir()
    with (
        zookeeper_host(tmp_path / "zookeeper", PATIENT_TICK_MS) as host,
        znodes_of(host.settings.address) as znodes,
    ):
        made = Site(tmp_path, host.settings.address, znodes)
        try:
            made.members[CONTROLLER].start()  # the first is it
            with ThreadPoolExecutor() as pool:
                for _ in pool.map(made.start, set(KAFKAS) - {CONTROLLER}):
                    pass
            yield made
        finally:
            made.end()


def fill(site: Site) -> None:
    """Topics on all of Kafka's brokers, one that nobody writes to any more, and a group of it."""
    addresses = site.addresses(KAFKAS)
    client = AdminClient({**QUIET, "bootstrap.servers": addresses})
    assignment = [[1, 2], [2, 1], [1, 2]]
    settings = {"retention.ms": "-1", "max.message.bytes": "900000"}
    new = [
        NewTopic(STILL, PARTITIONS, replica_assignment=assignment, config=settings),
        NewTopic(LOADED, PARTITIONS, replica_assignment=assignment),
    ]
    for made in client.create_topics(new).values():
        made.result(PATIENCE_S)
    site.run(
        f"kdist configs alter broker all --set log.retention.ms=172800000 --broker {addresses}"
    )
    for at, codec in enumerate(CODECS):
        producer = Producer(
            {**QUIET, "bootstrap.servers": addresses, "compression.type": codec, "linger.ms": 20}
        )
        for number in range(30):
            producer.produce(
                STILL,
                b"%d of %s" % (number, codec.encode()),
                b"key %d" % number,
                partition=number % PARTITIONS,
                timestamp=START_MS + 1000 * at + number,
                headers=[("codec", codec.encode())],
            )
        assert producer.flush(PATIENCE_S) == 0
    away = Consumer({**QUIET, "bootstrap.servers": addresses, "group.id": "billing"})
    positions = [TopicPartition(STILL, number, offset) for number, offset in POSITIONS.items()]
    away.commit(offsets=positions, asynchronous=False)
    away.close()


def still(site: Site, among: tuple[int, ...]) -> list[list[Read]]:
    """All records of the topic that nobody writes to, as librdkafka reads them."""
    member = site.members[among[0]]
    return [read_all(member, TopicPartition(STILL, number)) for number in range(PARTITIONS)]


def logs(site: Site, broker_id: int) -> dict[str, bytes]:
    """The bytes that a broker has of each partition of both topics."""
    names = [f"{topic}-{number}" for topic in (STILL, LOADED) for number in range(PARTITIONS)]
    return {each: log_bytes(site.members[broker_id].data / each) for each in names}


def committed(site: Site, among: tuple[int, ...]) -> dict[int, int]:
    asker = Consumer({**QUIET, "bootstrap.servers": site.addresses(among), "group.id": "billing"})
    asked = [TopicPartition(STILL, number) for number in POSITIONS]
    found = asker.committed(asked, timeout=PATIENCE_S)
    asker.close()
    return {each.partition: each.offset for each in found}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_taken_back", [False, True], ids=["there", "back"])
def test_a_cluster_of_kafka_becomes_one_of_kdist_as_the_page_says(
    site: Site, is_taken_back: bool
) -> None:
    fill(site)
    before = still(site, KAFKAS), committed(site, KAFKAS)
    writing = Writing(site.addresses(KAFKAS), LOADED, True, burst=BURST)
    group = Group(site.addresses(KAFKAS), "readers", [LOADED])
    try:
        grown(group.seen[LOADED], 500)
        logs_before = logs(site, KAFKAS[0])
        for number, text in steps():
            if number <= STOPPING:
                assert site.znodes.controller() == CONTROLLER
            walk(site, text)
            grown(writing.acknowledged.values, 100)
            grown(group.seen[LOADED], 100)
        assert site.znodes.controller() in KDISTS
        if is_taken_back:
            walk(site, PAGE.read_text().partition("\n## All the way back\n")[2])
            assert site.znodes.controller() in KAFKAS
            grown(group.seen[LOADED], 100)
    except BaseException:
        writing.stop()
        group.stop()
        raise
    ends = KAFKAS if is_taken_back else KDISTS
    judge(writing, group, site.addresses(ends))
    assert (still(site, ends), committed(site, ends)) == before
    for each in ends:
        now = logs(site, each)
        assert all(now[name].startswith(log) for name, log in logs_before.items())


def steps() -> Iterator[tuple[int, str]]:
    """The page's steps by number; one for each broker is taken back for the first of them."""
    for number, text in re.findall(r"\n## (\d)\. (.*?)(?=\n## |\Z)", PAGE.read_text(), re.DOTALL):
        yield int(number), text
        if FIRST in text:
            for id_ in KAFKAS[1:]:
                yield int(number), text.partition(BACK)[0].replace(FIRST, f"\nid={id_}")


def walk(site: Site, text: str) -> None:
    """Run a step's blocks. Where the last one is the way back, the one before is run again."""
    found = blocks_of(text)
    for block in found:
        site.run(*block)
    if BACK in text and "And forth" not in text:
        site.run(*found[-2])
