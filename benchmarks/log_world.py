"""What the benchmarks of the log run on: a directory to work in, logs, batches, two clocks.

A sample is a context manager that prepares, yields the work to be timed, and cleans up. Preparation
and clean-up are not timed, and each sample begins with no dirty data left to write.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import NamedTuple

from measuring import ROUNDS

from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.metrics.storage import StorageMetrics
from kdist.model import TopicPartition
from kdist.records.build import build_batch
from kdist.runtime.clock import SystemClock
from kdist.runtime.disk import Disk
from kdist.runtime.process import AsyncioProcess
from kdist.storage.background import DirectoryContext
from kdist.storage.directory import LogDirectory
from kdist.storage.log import Log
from kdist.storage.meta import Identity

START_MS = 1_700_000_000_000
RECORD_BYTES = 100
BATCH_RECORDS = {65_536: 591, 4096: 37, 1024: 8}  # as many as fit
VALUES = [random.Random(number).randbytes(RECORD_BYTES) for number in range(600)]
LEADER_EPOCH = 5

Sample = Callable[[], AbstractContextManager[Callable[[], object]]]

DEFAULTS = TopicSettings()


class Place(NamedTuple):
    """Where a run works, and whether it is a smoke test."""

    path: str
    is_quick: bool

    def scaled(self, full: int, quick: int) -> int:
        """A size for this run."""
        return quick if self.is_quick else full


class Speeds(NamedTuple):
    """Units per second of the working thread's CPU time, and of the wall clock."""

    cpu: float
    wall: float


class HastyDisk(Disk):
    """The real disk without syncs of directories and small files: fast with thousands of logs.

    What a log does between open and close goes to the same files as on `Disk`.
    """

    def sync_directory(self, path: str) -> None:
        pass

    def replace(
        self,
        path: str,
        content: bytes,
        *,
        durable: bool = True,  # noqa: ARG002
        is_secret: bool = False,
    ) -> None:
        super().replace(path, content, durable=False, is_secret=is_secret)


def tell(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def speeds(place: Place, samples: Mapping[str, Sample], units: int) -> dict[str, Speeds]:
    """Medians of five rounds after a warm-up round, in the order A B C, C B A, A B C, ..."""
    taken: dict[str, list[tuple[int, int]]] = {name: [] for name in samples}
    for turn in range(-1, ROUNDS):
        for name in list(samples)[:: -1 if turn % 2 else 1]:
            times = _time(samples[name])
            settle(place)
            if turn >= 0:
                taken[name].append(times)
    return {
        name: Speeds(*(units * 1e9 / statistics.median(column) for column in zip(*times)))  # noqa: B905
        for name, times in taken.items()
    }


def _time(sample: Sample) -> tuple[int, int]:
    """Nanoseconds of this thread's CPU time and of the wall clock."""
    with sample() as work:
        gc.collect()
        gc.disable()
        try:
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            work()
            return time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
        finally:
            gc.enable()


def settle(place: Place) -> None:
    """Write out all dirty data, so that one sample's pages do not slow the next one."""
    if not place.is_quick:
        with closing(Disk()) as disk:
            disk.sync_filesystem(place.path)


def make_batch(size_max: int, number: int = 0) -> bytearray:
    """A batch of at most `size_max` bytes, as a producer sends it: 100 random bytes a record.

    Its records are 1 ms apart; batch `number` follows number - 1.
    """
    count = BATCH_RECORDS[size_max]
    times = range(START_MS + number * count, START_MS + (number + 1) * count)
    batch = build_batch(VALUES[:count], timestamps=times, timestamp_ms=times[0])
    assert size_max - 2 * RECORD_BYTES < len(batch) <= size_max
    return batch


def fail(error: BaseException) -> None:
    """Stop the benchmark if its disk fails."""
    raise error


@contextmanager
def log_directory(
    path: str, disk: Disk | None = None, settings: StorageSettings | None = None
) -> Iterator[LogDirectory]:
    """A log directory on the real disk, blocking work on threads as in the broker.

    It is left as a crash would leave it, unless the body closes it.
    """
    os.makedirs(path, exist_ok=True)
    loop = asyncio.new_event_loop()
    tasks = AsyncioProcess(loop)
    directory = LogDirectory(
        path,
        Identity(1, "benchmark"),
        DirectoryContext(
            files=disk or HastyDisk(),
            clock=SystemClock(),
            tasks=tasks,
            rng=random.Random(1),
            settings=settings or StorageSettings(),
            metrics=StorageMetrics(),
            settings_of=lambda _topic: TopicSettings(),
            on_failure=fail,
        ),
    ).open()
    try:
        yield directory
    finally:
        loop.run_until_complete(tasks.idle())
        tasks.close()
        loop.close()
        for log in directory.logs.values():
            log.close()


def create_logs(
    directory: LogDirectory, count: int, settings: TopicSettings = DEFAULTS
) -> list[Log]:
    """New logs, 100 partitions a topic."""
    partitions = [TopicPartition(f"topic-{n // 100:03}", n % 100) for n in range(count)]
    topic_id = uuid.UUID(int=1)
    return [directory.create(partition, topic_id, settings) for partition in partitions]


def filesystem(path: str) -> str:
    """The type and device of the filesystem that holds `path`."""
    path = os.path.realpath(path)
    found = ("", "unknown", "")
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            mounted, (kind, device) = before.split()[4], after.split()[:2]
            if os.path.commonpath([mounted, path]) == mounted and len(mounted) >= len(found[0]):
                found = mounted, kind, device
    return f"{found[1]} on {found[2]}"
