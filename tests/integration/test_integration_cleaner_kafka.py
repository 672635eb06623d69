"""Apache Kafka's cleaner as the judge of ours: one log, cleaned by each, holds the same records.

Kafka writes it, with its cleaner off: every codec, tombstones, an idempotent producer, and
transactions that were committed and aborted. Then each opens what the other has left.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from conftest import copy_directory
from peer.kafka_broker import CLUSTER_ID, KafkaBroker
from peer.kafka_queries import Read, read_all
from peer.kafka_workload import WAIT_S, await_, create_topics, read_checkpoint
from peer.kdist_directory import settings_of

from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.metrics.storage import CleanerMetrics, StorageMetrics
from kdist.model import TopicPartition
from kdist.records.batch import read_header
from kdist.records.build import read_batch
from kdist.runtime.clock import SystemClock
from kdist.runtime.disk import Disk
from kdist.storage.background import DirectoryContext
from kdist.storage.cleaning.cleaner import Cleaner, CleanerHooks, ThreadWorker
from kdist.storage.directory import LogDirectory
from kdist.storage.log import Log
from kdist.storage.meta import Identity
from kdist.storage.names import CLEANER_OFFSETS
from tests.stepped_process import SteppedProcess

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.xdist_group("kafka")]

SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.001",
}
PLAIN, TRANSACTED = TopicPartition("plain", 0), TopicPartition("transacted", 0)
Line = tuple[int, int, bytes | None, bytes | None]


def write_plain(broker: KafkaBroker) -> None:
    """Five codecs, one idempotent producer, keys that come again, tombstones."""
    rng = random.Random(1)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd") * 3:
        producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "compression.type": codec,
                "linger.ms": 20,
                "batch.num.messages": 30,
                "enable.idempotence": codec == "lz4",
            }
        )
        for _ in range(400):
            key = b"key-%d" % rng.randrange(300)
            value = None if rng.random() < 0.2 else rng.randbytes(rng.randrange(120))
            producer.produce("plain", value, key)
        assert producer.flush(WAIT_S) == 0


def write_transacted(broker: KafkaBroker) -> None:
    """Transactions over the same keys, every third aborted."""
    rng = random.Random(2)
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "t"})
    producer.init_transactions(WAIT_S)
    for number in range(60):
        producer.begin_transaction()
        for _ in range(20):
            producer.produce("transacted", rng.randbytes(60), b"key-%d" % rng.randrange(90))
        if number % 3:
            producer.commit_transaction(WAIT_S)
        else:
            producer.flush(WAIT_S)
            producer.abort_transaction(WAIT_S)


def lines_of(directory: LogDirectory, partition: TopicPartition) -> list[Line]:
    """All records in a log's files, but markers."""
    found: list[Line] = []
    for segment in directory.logs[partition].segments:
        data, at = segment.file.read(0, segment.size), 0
        while at < len(data):
            header = read_header(data, at)
            if not header.is_control:
                found += [(r.offset, r.timestamp, r.key, r.value) for r in read_batch(data, at)]
            at += header.size
    return found


def opened_by_kdist(path: Path) -> tuple[LogDirectory, SteppedProcess]:
    rows = {row.name: row for row in TopicSettings.TABLE}
    given = {rows[name].attribute: rows[name].read(value) for name, value in SETTINGS.items()}
    ours = TopicSettings(**given)
    tasks = SteppedProcess()
    surroundings = DirectoryContext(
        files=Disk(),
        clock=SystemClock(),
        tasks=tasks,
        rng=random.Random(1),
        settings=StorageSettings(reserved_bytes=0),
        metrics=StorageMetrics(),
        settings_of=lambda topic: settings_of(topic) if topic.startswith("__") else ours,
        on_failure=_fail,
    )
    return LogDirectory(str(path), Identity(1, CLUSTER_ID), surroundings).open(), tasks


def _fail(error: BaseException) -> None:
    raise error


def clean_by_kdist(path: Path) -> CleanerMetrics:
    """Open the directory, clean all that is dirty, and close it."""
    directory, tasks = opened_by_kdist(path)
    metrics = CleanerMetrics()

    def end_of(log: Log) -> int:
        return log.end_offset

    worker = ThreadWorker(directory.files, directory.context.clock, tasks)
    hooks = CleanerHooks(end_of, lambda _: True)
    cleaner = Cleaner(directory, worker, hooks, metrics)
    cleaner.start()
    tasks.run_for_ms(5_000)
    cleaner.stop()
    tasks.run_for_ms(1_000)
    directory.close()
    return metrics


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Copies of one directory by who has cleaned it: nobody, Kafka, kdist."""
    root = tmp_path_factory.mktemp("cleaned")
    with KafkaBroker(root / "kafka", log_cleaner_enable="false") as broker:
        create_topics(broker, {str(p.topic): SETTINGS for p in (PLAIN, TRANSACTED)})
        write_plain(broker)
        write_transacted(broker)
    before = copy_directory(broker.data, root / "before")
    ours = copy_directory(broker.data, root / "kdist" / "data")
    ends = {
        str(p): max(int(each.stem) for each in (before / str(p)).glob("*.log"))
        for p in (PLAIN, TRANSACTED)
    }

    def is_clean() -> bool:
        done = read_checkpoint(broker.data / CLEANER_OFFSETS)
        return all(done.get(name, 0) >= end for name, end in ends.items())

    with KafkaBroker(broker.directory):
        await_(is_clean, "Kafka has cleaned both logs")
    metrics = clean_by_kdist(ours)
    assert metrics.passes >= 2
    assert metrics.removed_records > 1000
    return {"nobody": before, "kafka": broker.data, "kdist": ours}


@pytest.mark.parametrize("partition", [PLAIN, TRANSACTED], ids=str)
def test_both_cleaners_leave_the_same_records(
    cleaned: dict[str, Path], partition: TopicPartition, tmp_path: Path
) -> None:
    left: dict[str, list[Line]] = {}
    for who, path in cleaned.items():
        directory, _ = opened_by_kdist(copy_directory(path, tmp_path / who))
        left[who] = lines_of(directory, partition)
        directory.close()
    assert len(left["kdist"]) < len(left["nobody"]) / 2
    assert left["kdist"] == left["kafka"]


@pytest.mark.parametrize("partition", [PLAIN, TRANSACTED], ids=str)
def test_kafka_opens_and_serves_what_our_cleaner_has_left(
    cleaned: dict[str, Path], partition: TopicPartition, tmp_path: Path
) -> None:
    served: dict[str, list[Read]] = {}
    for who in ("kafka", "kdist"):
        copy_directory(cleaned[who], tmp_path / who / "data")
        with KafkaBroker(tmp_path / who, log_cleaner_enable="false") as broker:
            served[who] = read_all(broker, Place(*partition))
            said = broker.diagnostics()
        assert "Found a corrupted" not in said
        errors = [line for line in said.splitlines() if " ERROR " in line]
        late = "controller event queue overloaded"  # on a busy machine
        assert [line for line in errors if late not in line] == []
    assert served["kdist"] == served["kafka"]


def test_kafka_goes_on_cleaning_where_kdist_has_ended(
    cleaned: dict[str, Path], tmp_path: Path
) -> None:
    copy_directory(cleaned["kdist"], tmp_path / "kafka" / "data")
    before = read_checkpoint(cleaned["kdist"] / CLEANER_OFFSETS)["plain-0"]
    with KafkaBroker(tmp_path / "kafka") as broker:
        write_plain(broker)
        place = broker.data / CLEANER_OFFSETS
        await_(lambda: read_checkpoint(place).get("plain-0", 0) > before, "Kafka has cleaned more")
    directory, _ = opened_by_kdist(broker.data)
    lines = lines_of(directory, PLAIN)
    last = {key: offset for offset, _, key, _ in lines}
    assert len(last) <= 300
    assert [offset for offset, *_ in lines] == sorted(offset for offset, *_ in lines)
    directory.close()
