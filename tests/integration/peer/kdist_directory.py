"""kdist's storage on a log directory that Kafka has written, or will be started on."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peer.kafka_broker import CLUSTER_ID
from peer.kafka_queries import Read
from peer.kafka_workload import START_MS, TOPICS, make_records

from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.metrics.storage import StorageMetrics
from kdist.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TopicPartition
from kdist.records.batch import Batch, read_header
from kdist.records.build import build_batch
from kdist.records.compression import Codec
from kdist.runtime.clock import SystemClock
from kdist.runtime.disk import Disk
from kdist.storage.background import DirectoryContext
from kdist.storage.directory import LogDirectory
from kdist.storage.log import Log
from kdist.storage.meta import Identity
from tests.stepped_process import SteppedProcess

BATCHES = 120
OWNER = Identity(broker_id=1, cluster_id=CLUSTER_ID)


def settings_of(topic: str) -> TopicSettings:
    """What the topic was created with in Kafka; its own topics, `__...`, are compacted.

    kdist's own setting comes with kdist.
    """
    given = TOPICS.get(topic, {"cleanup.policy": "compact"})
    rows = (row for row in TopicSettings.TABLE if row.name in given)
    found: dict[str, Any] = {row.attribute: row.read(given[row.name]) for row in rows}
    return TopicSettings(**found, flush_before_expose=True)


@contextmanager
def opened(path: Path) -> Iterator[LogDirectory]:
    """The directory, opened by kdist as broker 1 and cleanly closed at the end."""
    tasks = SteppedProcess()
    directory = _open(path, tasks)
    tasks.run_until_idle()
    yield directory
    tasks.run_until_idle()
    directory.close()


def write_and_abandon(path: Path, partition: TopicPartition, seed: int) -> None:
    """A new log directory with one partition full of records, as the end of its process leaves it.

    Nothing that waits for a flush or a clean stop is written: index entries, epochs, snapshots.
    """
    path.mkdir()
    directory = _open(path, SteppedProcess())
    log = directory.create(partition, uuid.UUID(int=seed), settings_of(partition.topic))
    append_records(log, seed)


def _open(path: Path, tasks: SteppedProcess) -> LogDirectory:
    surroundings = DirectoryContext(
        files=Disk(),
        clock=SystemClock(),
        tasks=tasks,
        rng=random.Random(1),
        settings=StorageSettings(),
        metrics=StorageMetrics(),
        settings_of=settings_of,
        on_failure=_fail,
    )
    return LogDirectory(str(path), OWNER, surroundings).open()


def append_records(log: Log, seed: int) -> list[Read]:
    """Append some segments as epoch 0's leader: every codec, two idempotent producers and none.

    Gives the records as a consumer should get them.
    """
    expected: list[Read] = []
    for number in range(BATCHES):
        records = make_records(seed * 100 + number, 20, first_ms=START_MS + number * 200)
        producer_id, epoch, sequence = _producer_of(seed, number)
        batch = build_batch(
            [record.value for record in records],
            [record.key for record in records],
            [record.headers for record in records],
            [record.timestamp_ms for record in records],
            timestamp_ms=START_MS,
            codec=Codec(number % len(Codec)),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        appended = log.append_as_leader([Batch(read_header(batch), batch)], 0, START_MS)
        expected += [
            Read(offset, sent.timestamp_ms, sent.key, sent.value, sent.headers)
            for offset, sent in enumerate(records, appended.start_offset)
        ]
    return expected


def _producer_of(seed: int, number: int) -> tuple[int, int, int]:
    """Producer id, epoch and base sequence of a batch: two producers and none take turns."""
    producer, turn = number % 3, number // 3
    if producer == 2:
        return NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE
    return 1000 + 10 * seed + producer, producer, turn * 20


def _fail(error: BaseException) -> None:
    raise error
