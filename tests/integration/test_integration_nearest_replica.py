"""Consumers that say their rack read from the follower there: three brokers, each in another rack.

Who served them, the brokers' own counters of bytes tell.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from typing import NamedTuple

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from peer.kafka_peer import run_tool

from kdist.client.admin.clients import Admin
from kdist.client.consumer.consumer import Consumer
from kdist.client.producer.sync import Producer
from kdist.model import TopicPartition
from tests.integration.broker_processes import BrokerProcess, settled
from tests.integration.zookeeper_server import ZooKeeperHost, free_port

RACKS = {1: "a", 2: "b", 3: "c"}
SETTINGS = {
    "replica_selector_class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "default_replication_factor": "3",
    "offsets_topic_replication_factor": "3",
    "min_insync_replicas": "2",
    "num_partitions": "1",
}
COUNT, VALUE = 3_000, bytes(1_000)
TIMEOUT_S = 60.0


class Site(NamedTuple):
    """The brokers by id."""

    brokers: dict[int, BrokerProcess]

    @property
    def addresses(self) -> str:
        return ",".join(each.address for each in self.brokers.values())

    def write(self, topic: str, count: int = COUNT) -> tuple[int, int]:
        """Have so many records on all replicas; the leader, and the follower to read from."""
        with Producer(self.addresses) as producer:
            for _ in range(count):
                producer.send(topic, VALUE)
            producer.flush()
        replicas = self.replicas(topic)
        settled(lambda: sorted(self.described(topic)["isr"]) == [1, 2, 3])
        ends = {"in sync", "leader"}
        settled(lambda: {each["state"] for each in self.described(topic)["replica_states"]} == ends)
        return replicas[0], replicas[-1]

    def replicas(self, topic: str) -> list[int]:
        """The leader first."""
        found = self.described(topic)
        leader: int = found["leader"]
        return [leader, *(each for each in found["replicas"] if each != leader)]

    def described(self, topic: str) -> dict[str, list[dict[str, str]] | list[int] | int]:
        where = ("--broker", self.addresses, "--json", "--replicas")
        (partition,) = json.loads(kdist("topics", "describe", topic, *where))["partitions"]
        found: dict[str, list[dict[str, str]] | list[int] | int] = partition
        return found

    def sent_bytes(self) -> dict[int, int]:
        """What each broker has sent, to whomever."""
        return {each: _sent_bytes(broker) for each, broker in self.brokers.items()}


def _sent_bytes(broker: BrokerProcess) -> int:
    address = broker.settings["http.address"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    (value,) = (
        line.split()[1] for line in lines if line.startswith("kdist_network_sent_bytes_total")
    )
    return int(float(value))


def kdist(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kdist.cli", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperHost) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("nearest")
    connect = f"{zookeeper.settings.address}/racks"
    brokers = {
        each: BrokerProcess(
            *(each, directory, connect),
            broker_rack=rack,
            http_address=f"127.0.0.1:{free_port()}",
            **SETTINGS,
        )
        for each, rack in RACKS.items()
    }
    try:
        for each in brokers.values():
            each.start()
        yield Site(brokers)
    finally:
        for each in brokers.values():
            each.end()


def by_our_consumer(site: Site, topic: str, rack: str) -> int:
    with Consumer(site.addresses, client_rack=rack, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found: list[int] = []
        while len(found) < COUNT:
            found += [each.offset for each in consumer.poll(TIMEOUT_S)]
    assert found == list(range(COUNT))
    return len(found)


def by_our_command(site: Site, topic: str, rack: str) -> int:
    where = ("--broker", site.addresses, "-X", f"client.rack={rack}")
    return len(
        kdist("consume", topic, *where, "--from-beginning", "--until-end", "-f", r"%o\n").split()
    )


def by_librdkafka(site: Site, topic: str, rack: str) -> int:
    config = {"bootstrap.servers": site.addresses, "client.rack": rack, "group.id": topic}
    consumer = ck.Consumer(config)
    consumer.assign([ck.TopicPartition(topic, 0, 0)])
    found: list[int] = []
    try:
        while len(found) < COUNT:
            messages = consumer.consume(500, TIMEOUT_S)
            assert messages, "nothing came"
            found += [each.offset() for each in messages if each.error() is None]
    finally:
        consumer.close()
    assert found == list(range(COUNT))
    return len(found)


def by_java(site: Site, topic: str, rack: str) -> int:
    said = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", site.addresses, "--topic", topic),
        *("--partition", "0", "--offset", "earliest"),
        *("--consumer-property", f"client.rack={rack}"),
        *("--max-messages", str(COUNT), "--timeout-ms", "60000"),
    )
    assert f"Processed a total of {COUNT} messages" in said
    return COUNT


@pytest.mark.timeout(300)
@pytest.mark.parametrize("read", [by_our_consumer, by_our_command, by_librdkafka, by_java])
def test_a_consumer_truly_reads_from_the_follower_in_its_rack(
    site: Site, read: Callable[[Site, str, str], int]
) -> None:
    _, near = site.write(f"{read.__name__}-near")
    before = site.sent_bytes()
    assert read(site, f"{read.__name__}-near", RACKS[near]) == COUNT
    after = site.sent_bytes()
    grown = {each: after[each] - before[each] for each in after}
    size = COUNT * len(VALUE)
    assert grown[near] >= size
    assert max(bytes_ for each, bytes_ in grown.items() if each != near) < size / 10


def test_a_consumer_of_the_leaders_rack_reads_from_the_leader(site: Site) -> None:
    leader, near = site.write("at-the-leader")
    before = site.sent_bytes()
    by_our_consumer(site, "at-the-leader", RACKS[leader])
    after = site.sent_bytes()
    assert after[leader] - before[leader] >= COUNT * len(VALUE)
    assert after[near] - before[near] < COUNT * len(VALUE) / 10


def test_metadata_tells_the_racks(site: Site) -> None:
    with Admin(site.addresses) as admin:
        brokers = admin.describe_cluster().brokers
    assert {each.id: each.rack for each in brokers} == RACKS
    foreign = AdminClient({"bootstrap.servers": site.addresses})
    found = foreign.describe_cluster().result(TIMEOUT_S)
    assert {each.id: each.rack for each in found.nodes} == RACKS


@pytest.mark.timeout(300)
def test_a_reader_goes_on_when_its_follower_is_killed(site: Site) -> None:
    """The last test: one broker is gone after it."""
    topic, count = "killed", 200
    _, near = site.write(topic, count)
    dead = site.brokers[near]
    others = Site({each: broker for each, broker in site.brokers.items() if each != near})
    offsets: list[int] = []
    with Consumer(
        site.addresses, client_rack=RACKS[near], auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        before = _sent_bytes(dead)
        while len(offsets) < count:
            offsets += [each.offset for each in consumer.poll(TIMEOUT_S)]
        assert _sent_bytes(dead) - before >= count * len(VALUE)
        dead.stop(signal.SIGKILL)
        kdist("end-session", "--config", dead.file)
        with Producer(others.addresses) as producer:
            for _ in range(count):
                producer.send(topic, VALUE)
            producer.flush()
        while len(offsets) < 2 * count:
            offsets += [each.offset for each in consumer.poll(TIMEOUT_S)]
    assert offsets == list(range(2 * count))
