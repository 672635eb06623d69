"""A compacted log, its cleaner, and records with keys, for the tests of compaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kdist.config.topic import TopicSettings
from kdist.metrics.storage import CleanerMetrics
from kdist.model import TopicPartition
from kdist.records.batch import Batch, read_header
from kdist.records.build import build_batch, read_batch
from kdist.storage.cleaning.cleaner import Cleaner, CleanerHooks, CleaningWorker, ThreadWorker
from kdist.storage.log import Log
from tests.unit.storage.storage_world import CLICKS, World

SETTINGS = TopicSettings(
    cleanup_policy=("compact",), segment_bytes=400, index_interval_bytes=100, segment_jitter_ms=0
)
Pair = tuple[bytes, bytes | None]
A, B, C = b"a", b"b", b"c"
ROUND = [(A, b"1"), (B, b"2"), (A, b"3"), (C, b"4"), (B, b"5")]
LEFT = [(2, A, b"3"), (3, C, b"4"), (4, B, b"5")]


class CleaningWorld(World):
    """A `World` with a cleaner; `topic` gives settings that differ from `SETTINGS`."""

    def __init__(self, *, topic: TopicSettings = SETTINGS, **more: Any) -> None:
        super().__init__(topic=topic, **{"cleaner_backoff_ms": 100, **more})
        self.is_fully_in_sync = True
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.start_cleaner()

    def start_cleaner(self, worker: CleaningWorker | None = None) -> None:
        """Open the directory, and make its cleaner; `clean` then runs it."""
        directory = self.open()
        self.is_cleaning = False
        self.cleaned = CleanerMetrics()
        hooks = CleanerHooks(
            lambda log: self.high_watermarks.get(log.partition, log.end_offset),
            lambda _: self.is_fully_in_sync,
        )
        worker = worker or ThreadWorker(self.files, self.clock, self.tasks)
        self.cleaner = Cleaner(directory, worker, hooks, self.cleaned)

    def put(
        self,
        pairs: Sequence[Pair],
        partition: TopicPartition = CLICKS,
        timestamp: int | None = None,
        epoch: int = 0,
        **fields: Any,
    ) -> Log:
        """Append each pair of key and value in a batch of its own."""
        log, now_ms = self.log(partition), self.clock.now_ms()
        for key, value in pairs:
            stamp = now_ms if timestamp is None else timestamp
            data = build_batch([value], [key], timestamp_ms=stamp, **fields)
            log.append_as_leader([Batch(read_header(data), data)], epoch, now_ms)
        return log

    def close_segment(self, partition: TopicPartition = CLICKS) -> None:
        """Roll the log, and flush it, so that all that it holds may be cleaned."""
        log = self.log(partition)
        log.roll(self.clock.now_ms())
        self.flush(log)

    def clean(self, ms: float = 400) -> None:
        """Let the cleaner work for a while."""
        if not self.is_cleaning:
            self.is_cleaning = True
            self.cleaner.start()
        self.settle(ms)
        if self.failures:
            raise self.failures[0]


def dirty(**settings: Any) -> CleaningWorld:
    """A world whose log has some closed segments with older values of its keys."""
    world = CleaningWorld(topic=replace(SETTINGS, **settings))
    world.put(ROUND)
    world.close_segment()
    return world


def pairs_in(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of each record in the log's files."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    for segment in log.segments:
        data, at = segment.file.read(0, segment.size), 0
        while at < len(data):
            found += [(each.offset, each.key, each.value) for each in read_batch(data, at)]
            at += read_header(data, at).size
    return found
