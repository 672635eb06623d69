"""Logs that an Apache Kafka of 0.9 or 0.10 left to a newer broker: read, and mirrored.

Kafka 3.9 writes them itself: with a ZooKeeper, and the protocol of 2.8 between brokers, it keeps a
topic in the format that `message.format.version` names. librdkafka says what is in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer as Judge
from confluent_kafka import TopicPartition as JudgesPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from peer.kafka_broker import KafkaBroker

from kdist.classic.simple import FetchRequest, SimpleConsumer
from kdist.client.consumer.consumer import Consumer
from kdist.model import TopicPartition
from kdist.records.batch import TimestampType
from tests.integration.broker_processes import BrokerProcess, broker_processes, settled
from tests.integration.mirror_processes import (
    QUIET,
    MirrorProcess,
    copied,
    create,
    end_of,
    ended,
    flow,
    producer,
)
from tests.integration.zookeeper_server import PATIENT_TICK_MS, zookeeper_host

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("kafka")]

CODECS = ("none", "gzip", "snappy", "lz4")
FORMATS = {0: "0.9.0", 1: "0.10.2"}
FIRST_MS = 1_700_000_000_000
MAGIC_POSITION = 16


class Read(NamedTuple):
    """A record as both sides show it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    is_append_time: bool = False


class Site(NamedTuple):
    """Where the old logs are, and a broker of ours to mirror them to."""

    kafka: KafkaBroker
    target: BrokerProcess


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("old-logs")
    (place / "zookeeper").mkdir()
    with zookeeper_host(place / "zookeeper", PATIENT_TICK_MS) as host:
        own = f"{host.settings.address}/kafka"
        settings = {
            "inter_broker_protocol_version": "2.8",
            "group_min_session_timeout_ms": "100",
        }
        with (
            KafkaBroker(place / "kafka", zookeeper=own, **settings) as kafka,
            broker_processes(1, place, host.settings.address) as (target,),
        ):
            yield Site(kafka, target)


def write(address: str, topic: str, codec: str, count: int, keys: int = 1000) -> None:
    """Records of a time each, among them keys, values and both that are null or empty."""
    to = producer(address, compression_type=codec, linger_ms=50)
    for number in range(count):
        key = None if number % 5 == 4 and keys > count else b"key %d" % (number % keys)
        value = None if number % 7 == 6 else b"%d " % number * (number % 20)
        to.produce(topic, value, key, partition=0, timestamp=FIRST_MS + number)
    assert to.flush(20) == 0


def by_judge(address: str, topic: str) -> list[Read]:
    judge = Judge(
        {**QUIET, "bootstrap.servers": address, "group.id": "judge", "enable.partition.eof": True}
    )
    judge.assign([JudgesPartition(topic, 0, 0)])
    found: list[Read] = []
    while True:
        message = judge.poll(20)
        assert message is not None
        if message.error():
            judge.close()
            return found
        kind, time = message.timestamp()
        stamp = -1 if kind == 0 else time
        found.append(Read(message.offset(), message.key(), message.value(), stamp, kind == 2))


def by_us(address: str, topic: str, begin: int = 0, **settings: Any) -> list[Read]:
    key = TopicPartition(topic, 0)
    with Consumer(address, auto_offset_reset="none", **settings) as consumer:
        consumer.assign([key])
        consumer.seek(key, begin)
        end = consumer.end_offsets([key])[key]
        found: list[Read] = []
        while consumer.position(key) < end:
            found += [
                Read(
                    each.offset,
                    each.key,
                    each.value,
                    each.timestamp,
                    each.timestamp_type is TimestampType.LOG_APPEND_TIME,
                )
                for each in consumer.poll(10)
            ]
        return found


def magics(kafka: KafkaBroker, topic: str) -> set[int]:
    """The formats that the segments of partition 0 hold, one behind the other."""
    found = set()
    for segment in (kafka.data / f"{topic}-0").glob("*.log"):
        data, at = segment.read_bytes(), 0
        while at < len(data):
            found.add(data[at + MAGIC_POSITION])
            at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return found


def write_with_each_codec(kafka: KafkaBroker, topic: str, magic: int, **settings: str) -> None:
    kept = {"message_format_version": FORMATS[magic], "retention_ms": "-1"}
    create(kafka.address, topic, 1, **kept, **settings)
    for codec in CODECS:
        write(kafka.address, topic, codec, 60)
    assert magics(kafka, topic) == {magic}


def upgrade(address: str, topic: str) -> None:
    """What is written from now on are batches."""
    entry = ConfigEntry(
        "message.format.version", "2.8", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource("topic", topic, incremental_configs=[entry])
    admin = AdminClient({**QUIET, "bootstrap.servers": address})
    admin.incremental_alter_configs([resource])[resource].result(20)


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_log_is_read_from_any_offset(site: Site, magic: int) -> None:
    topic = f"old-{magic}"
    write_with_each_codec(site.kafka, topic, magic)
    expected = by_judge(site.kafka.address, topic)
    assert len(expected) == 4 * 60
    assert by_us(site.kafka.address, topic) == expected
    for begin in range(1, 4 * 60, 17):
        assert by_us(site.kafka.address, topic, begin) == expected[begin:]
    small = {"max_partition_fetch_bytes": 500, "fetch_max_bytes": 500}
    assert by_us(site.kafka.address, topic, **small) == expected


@pytest.mark.parametrize("magic", [0, 1])
def test_a_log_that_continues_in_record_batches_is_read_through(site: Site, magic: int) -> None:
    topic = f"upgraded-{magic}"
    write_with_each_codec(site.kafka, topic, magic)
    upgrade(site.kafka.address, topic)
    written = 4 * 60

    def has_both() -> bool:
        nonlocal written
        write(site.kafka.address, topic, "lz4", 10)
        written += 10
        return magics(site.kafka, topic) == {magic, 2}

    settled(has_both)
    expected = by_judge(site.kafka.address, topic)
    assert len(expected) == written
    assert by_us(site.kafka.address, topic) == expected
    assert by_us(site.kafka.address, topic, 235) == expected[235:]


def test_log_append_time_of_an_old_log_is_shown_as_such(site: Site) -> None:
    write_with_each_codec(site.kafka, "stamped", 1, message_timestamp_type="LogAppendTime")
    expected = by_judge(site.kafka.address, "stamped")
    assert all(each.is_append_time for each in expected)
    assert by_us(site.kafka.address, "stamped") == expected


def write_compacted(site: Site, topic: str, codec: str) -> None:
    """A log of magic 1 that has lost records in its midst."""
    create(
        site.kafka.address,
        topic,
        1,
        message_format_version=FORMATS[1],
        cleanup_policy="compact",
        segment_ms="500",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="500",
    )
    write(site.kafka.address, topic, codec, 300, keys=70)

    def is_compacted() -> bool:
        to = producer(site.kafka.address)  # so that segments roll
        to.produce(topic, b"later", b"another", partition=0)
        to.flush(10)
        held = len(by_judge(site.kafka.address, topic))
        return 0 < held < end_of(site.kafka.address, topic, 0) - 150

    settled(is_compacted)
    assert magics(site.kafka, topic) == {1}


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_compacted_old_log_keeps_its_offsets(site: Site, codec: str) -> None:
    write_compacted(site, f"compacted-{codec}", codec)
    ours = by_us(site.kafka.address, f"compacted-{codec}")
    assert ours == by_judge(site.kafka.address, f"compacted-{codec}")
    assert len(ours) < ours[-1].offset - 150


def test_the_simple_consumer_reads_an_old_log(site: Site) -> None:
    write_with_each_codec(site.kafka, "simple", 1)
    host, _, port = site.kafka.address.rpartition(":")
    with SimpleConsumer(host, int(port)) as simple:
        found = simple.fetch(FetchRequest("simple", 0, 70))
        read = [Read(at, message.key, message.value, message.timestamp) for message, at in found]
        assert found.next_offset == 240
    assert read == by_judge(site.kafka.address, "simple")[70:]


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_log_is_mirrored(site: Site, magic: int, tmp_path: Path) -> None:
    topic = f"mirrored-{magic}"
    write_with_each_codec(site.kafka, topic, magic)
    settings = flow(site.kafka.address, site.target.address, topic, topics=topic)
    mirror = MirrorProcess(tmp_path, topic, settings)
    with ended(mirror):
        mirror.start()
        settled(lambda: copied(site.target.address, topic, 1) == 4 * 60)
        (row,) = mirror.status()
        assert mirror.stop() == 0
    assert row["lag_records"] == 0
    assert by_us(site.target.address, topic) == by_judge(site.kafka.address, topic)
