"""`kdist mirror` with Apache Kafka 3.9: as its target, killed; as its source, with all it has.

What only Kafka has today is in its topics: transactions, aborted ones too, and a compacted log.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from page_commands import blocks_of, environment, run_block
from peer.kafka_broker import KafkaBroker

from tests.integration.broker_processes import BrokerProcess, broker_processes, settled
from tests.integration.mirror_processes import (
    QUIET,
    MirrorProcess,
    Writing,
    assert_same,
    await_ends,
    await_more,
    batches_of,
    copied,
    create,
    end_of,
    ended,
    flow,
    kdist,
    producer,
)
from tests.integration.zookeeper_server import PATIENT_TICK_MS, zookeeper_host

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("kafka")]

FROM_KAFKA = Path(__file__).parents[2] / "docs/guides/from-kafka.md"
KILLS = 4
KEYS = 20
Read = tuple[bytes | None, bytes | None, tuple[int, int]]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("kafka-mirror") / "broker"
    with KafkaBroker(place, group_min_session_timeout_ms="100") as broker:
        yield broker.address


@pytest.fixture(scope="module")
def kdist_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    place = tmp_path_factory.mktemp("kdist-mirror")
    (place / "zookeeper").mkdir()
    with (
        zookeeper_host(place / "zookeeper", PATIENT_TICK_MS) as host,
        broker_processes(1, place, host.settings.address) as (broker,),
    ):
        yield broker


def test_a_group_goes_on_where_it_was_after_the_page_for_clusters_in_kraft_mode(
    kafka: str, kdist_broker: BrokerProcess, tmp_path: Path
) -> None:
    page = FROM_KAFKA.read_text().partition("\n## From KRaft, by a mirror\n")[2]
    section = page.partition("\n## ")[0].replace("10.0.0.1:9092", kafka)
    section = section.replace("10.0.1.1:9092", kdist_broker.address)
    create(kafka, "clicks", 3)
    ends = [5, 6, 7]
    writer = producer(kafka)
    for partition, end in enumerate(ends):
        for number in range(end):
            writer.produce("clicks", f"{number}", partition=partition)
    assert writer.flush(10) == 0
    member = Consumer({**QUIET, "bootstrap.servers": kafka, "group.id": "billing"})
    read = [TopicPartition("clicks", number, end) for number, end in enumerate(ends)]
    member.commit(offsets=read, asynchronous=False)
    member.close()
    mirror = MirrorProcess(tmp_path, "from-kafka", {})
    (text,) = re.findall(r"```properties\n(.*?)```", section, re.DOTALL)
    mirror.file.write_text(text)
    around = environment(tmp_path, 0)
    with ended(mirror):
        mirror.start()
        await_ends(kdist_broker.address, "clicks", ends)
        asked = ("mirror", "status", "--config", str(mirror.file))
        settled(lambda: "is up to date" in kdist(*asked).stdout)
        for command, shown in blocks_of(section):
            run_block(command, shown, tmp_path, around)
        assert mirror.stop() == 0
    member = Consumer({**QUIET, "bootstrap.servers": kdist_broker.address, "group.id": "billing"})
    found = [each.offset for each in member.committed(read, timeout=20)]
    member.close()
    assert found == ends


def read_all(address: str, topic: str) -> list[Read]:
    """Key, value and timestamp of every committed record of partition 0."""
    reader = Consumer(
        {
            **QUIET,
            "bootstrap.servers": address,
            "group.id": "reads",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[Read] = []
    while True:
        message = reader.poll(20)
        assert message is not None
        if message.error():
            reader.close()
            return found
        found.append((message.key(), message.value(), message.timestamp()))


def test_kafka_as_target_gets_every_batch_once_from_a_mirror_that_is_killed(
    kafka: str, kdist_broker: BrokerProcess, tmp_path: Path
) -> None:
    for address in (kdist_broker.address, kafka):
        create(address, "killed", 3)
    rng = random.Random(7)
    settings = {"mirror.session.timeout.ms": "1000"}
    mirror = MirrorProcess(
        tmp_path, "to-kafka", flow(kdist_broker.address, kafka, topics="killed") | settings
    )
    with ended(mirror):
        mirror.start()
        writing = Writing(kdist_broker.address, "killed")
        try:
            for _ in range(KILLS):
                await_more(kafka, "killed", rng.randrange(1, 1_000))
                mirror.kill()
                mirror.start()
        finally:
            count = writing.stop()
        settled(lambda: copied(kafka, "killed") == count)
        assert mirror.stop() == 0
    assert_same(kdist_broker.address, kafka, "killed")


def test_kafka_as_source_gives_what_was_committed_and_not_its_markers(
    kafka: str, kdist_broker: BrokerProcess, tmp_path: Path
) -> None:
    create(kafka, "decided", 1)
    writer = producer(kafka, **{"transactional.id": "decides", "compression.type": "zstd"})
    writer.init_transactions(20)
    for number in range(12):
        writer.begin_transaction()
        for each in range(5):
            writer.produce("decided", f"{number}-{each} " * 50, partition=0)
        writer.flush(10)
        (writer.abort_transaction if number % 3 == 1 else writer.commit_transaction)(20)
    expected = mirrored(kafka, kdist_broker, tmp_path, "decided", 8 * 5)
    assert len(expected) == 8 * 5
    batches = batches_of(kdist_broker.address, "decided", 0)
    assert not any(each.header.is_transactional or each.header.is_control for each in batches)
    assert {each.header.codec for each in batches} == {4}


def test_a_compacted_topic_of_kafka_passes_with_its_gaps_closed(
    kafka: str, kdist_broker: BrokerProcess, tmp_path: Path
) -> None:
    create(
        kafka,
        "compacted",
        1,
        cleanup_policy="compact",
        segment_ms="500",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="500",
    )
    writer = producer(kafka, **{"linger.ms": 50, "compression.type": "lz4"})
    for number in range(400):
        writer.produce("compacted", f"value {number}", f"key {number * number % KEYS}", 0)
        if number % 100 == 99:
            writer.flush(10)

    def is_compacted() -> bool:
        writer.produce("compacted", "later", "another key", partition=0)  # so that segments roll
        writer.flush(10)
        batches = batches_of(kafka, "compacted", 0)
        return any(
            0 < each.header.record_count <= each.header.last_offset_delta for each in batches
        )

    settled(is_compacted)
    mirror = MirrorProcess(
        tmp_path, "compacted", flow(kafka, kdist_broker.address, "c", topics="compacted")
    )
    before = end_of(kafka, "compacted", 0)
    with ended(mirror):
        mirror.start()
        settled(lambda: mirrored_up_to(mirror, before))
        assert mirror.stop() == 0
    latest = {key: value for key, value, _ in read_all(kdist_broker.address, "compacted")}
    assert latest == {key: value for key, value, _ in read_all(kafka, "compacted")}
    assert end_of(kdist_broker.address, "compacted", 0) < before


def mirrored_up_to(mirror: MirrorProcess, offset: int) -> bool:
    (row,) = mirror.status() or [{"position": None}]
    return (row["position"] or 0) >= offset


def test_log_append_time_is_kept_as_the_time_of_each_record(
    kafka: str, kdist_broker: BrokerProcess, tmp_path: Path
) -> None:
    create(kafka, "stamped", 1, message_timestamp_type="LogAppendTime")
    writer = producer(kafka)
    for number in range(30):
        writer.produce("stamped", str(number), partition=0, timestamp=1_000_000 + number)
    writer.flush(10)
    expected = mirrored(kafka, kdist_broker, tmp_path, "stamped", 30)
    assert {times for _, _, (_, times) in expected}.isdisjoint(range(1_000_000, 1_000_030))


def mirrored(kafka: str, target: BrokerProcess, place: Path, topic: str, records: int) -> list[Any]:
    """Mirror a topic; what both sides then have, keys, values and times."""
    mirror = MirrorProcess(place, topic, flow(kafka, target.address, topic, topics=topic))
    with ended(mirror):
        mirror.start()
        settled(lambda: topic_end(target, topic) == records)
        assert mirror.stop() == 0
    found = [(key, value, at) for key, value, (_, at) in read_all(target.address, topic)]
    assert found == [(key, value, at) for key, value, (_, at) in read_all(kafka, topic)]
    return read_all(target.address, topic)


def topic_end(broker: BrokerProcess, topic: str) -> int:
    return copied(broker.address, topic, partitions=1)
