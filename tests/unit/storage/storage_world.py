"""Small builders for the storage tests: a log directory and its surroundings, on either disk.

A `World` is a machine: it can be opened, closed, lose power and be opened again. `lines` gives what
a log holds, read from its files as a stranger would.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.errors import KdistError
from kdist.metrics.storage import StorageMetrics
from kdist.model import TopicPartition
from kdist.records.batch import Batch, read_header
from kdist.records.build import build_batch, read_batch
from kdist.runtime.disk import Disk
from kdist.runtime.steps import run_steps
from kdist.storage.append import Append
from kdist.storage.background import DirectoryContext
from kdist.storage.directory import LogDirectory
from kdist.storage.log import Log
from kdist.storage.meta import Identity
from kdist.storage.names import Suffix, segment_name
from kdist.storage.time_lookup import TimestampedOffset, finding_by_timestamp
from kdist.testing.simulated_disk import SimulatedDisk
from kdist.testing.virtual_clock import VirtualClock
from tests.stepped_process import SteppedProcess

CLICKS = TopicPartition("clicks", 0)
VIEWS = TopicPartition("views", 3)
TOPIC_ID = uuid.UUID(int=7)
IDENTITY = Identity(1, "cluster")
START_MS = 1_700_000_000_000

Line = tuple[int, bytes | None]


class Escaped(AssertionError):
    """An error raised by a callback, of which neither `on_failure` nor a waiter was told."""


def batch_of(
    values: Sequence[bytes], *, timestamp: int = START_MS, base_offset: int = 0, **fields: Any
) -> Batch:
    """A checked batch as a handler gives it to a log, in a buffer that can be patched."""
    data = build_batch(values, timestamp_ms=timestamp, base_offset=base_offset, **fields)
    return Batch(read_header(data), data)


def append_all(log: Log, batches: Sequence[Batch], epoch: int, now_ms: int) -> list[int]:
    """Append batches of separate requests, as many at a time as the log takes; their offsets."""
    offsets: list[int] = []
    while batches:
        append = log.complete_append(log.prepare_coalesced(batches, epoch, now_ms), now_ms)
        offsets += append.offsets
        batches = batches[len(append.offsets) :]
    return offsets


def write(append: Append) -> None:
    """Write a prepared append, as a thread does."""
    append.segment.file.write(append.buffers, append.position)


def append_some(log: Log, batches: Sequence[Batch]) -> Append:
    """Append the first of these batches, and those of the others that share its write."""
    return log.complete_append(log.prepare_coalesced(batches, 0, START_MS), START_MS)


def numbered(first: int, count: int, size: int = 10) -> list[bytes]:
    """`count` distinct values of `size` bytes, numbered from `first` on."""
    return [
        b"%d" % number + bytes(size - len(str(number))) for number in range(first, first + count)
    ]


class World:
    """One machine with one log directory at `path`; `failures` is what `on_failure` heard."""

    def __init__(
        self,
        files: Disk | SimulatedDisk | None = None,
        path: str = "/d01",
        *,
        seed: int = 0,
        topic: TopicSettings | None = None,
        **storage: Any,
    ) -> None:
        self.rng = random.Random(seed)
        self.clock = VirtualClock(START_MS)
        self.path = path
        self.topic = topic or TopicSettings()
        defaults = {"reserved_bytes": 0, "preallocation_step_bytes": 0, "writeback_step_bytes": 0}
        self.storage = StorageSettings(**{**defaults, **storage})
        self.metrics = StorageMetrics()
        self.failures: list[BaseException] = []
        self.boot_id = "boot 1"
        self.vetted: str | None = None  # the content id by which a controller has judged it
        if files is None:
            files = SimulatedDisk(self.rng, self.clock)
            files.make_directory(path)
            files.sync_directory("/")
        self.files = files
        self.tasks = SteppedProcess(self.clock, self.rng)
        self._directory: LogDirectory | None = None

    @property
    def directory(self) -> LogDirectory:
        """The directory as it was last opened."""
        assert self._directory is not None, "the world was not opened yet"
        return self._directory

    @property
    def disk(self) -> SimulatedDisk:
        """The disk, where a test needs it to misbehave."""
        assert isinstance(self.files, SimulatedDisk)
        return self.files

    def directory_context(self) -> DirectoryContext:
        return DirectoryContext(
            files=self.files,
            clock=self.clock,
            tasks=self.tasks,
            rng=self.rng,
            settings=self.storage,
            metrics=self.metrics,
            settings_of=lambda _topic: self.topic,
            on_failure=self.failures.append,
            boot_id=self.boot_id,
        )

    def open(self) -> LogDirectory:
        """Start on what the disk holds."""
        self.tasks = SteppedProcess(self.clock, self.rng)
        self.metrics = StorageMetrics()
        directory = LogDirectory(self.path, IDENTITY, self.directory_context())
        self._directory = directory.open(self.vetted)
        return self._directory

    def log(self, partition: TopicPartition = CLICKS, **topic: Any) -> Log:
        """The partition's log, opened or created if need be."""
        directory = self._directory or self.open()
        if partition not in directory.logs:
            self.topic = replace(self.topic, **topic)
            directory.create(partition, TOPIC_ID, self.topic)
        return directory.logs[partition]

    def settle(self, ms: float = 200) -> None:
        """Run what was requested, for too short a time for retired files to be unlinked."""
        try:
            self.tasks.run_for_ms(ms)
        except (KdistError, OSError) as error:
            raise Escaped(repr(error)) from error

    def flush(self, log: Log) -> None:
        """Flush and wait for it; raises the error that the waiter gets."""
        self.wait(lambda done: self.directory.flusher.request(log, done))

    def wait(self, ask: Callable[[Callable[[BaseException | None], None]], None]) -> None:
        """Request something that calls back, and wait; raises the error that the callback gets."""
        heard: list[BaseException | None] = []
        ask(heard.append)
        try:
            self.tasks.run_until(lambda: bool(heard) or bool(self.failures), 10_000)
        except (KdistError, OSError) as escaped:
            raise Escaped(repr(escaped)) from escaped
        assert heard or self.failures, "nobody answered"
        error = heard[0] if heard else self.failures[0]
        if error is not None:
            raise error

    def stop(self) -> None:
        """Stop cleanly."""
        self.settle()
        self.directory.close()

    def restart(self) -> LogDirectory:
        """Stop cleanly and start again."""
        self.stop()
        return self.open()

    def lose_power(self) -> None:
        """Cut the power: what was not synced may go."""
        self.files = self.disk.crash(self.rng)

    def delete(self, partition: TopicPartition = CLICKS) -> None:
        """Delete a partition and wait for it."""
        self.wait(lambda done: self.directory.delete(partition, done))

    def delete_records(self, log: Log, offset: int) -> None:
        """Delete the records below `offset` and wait until that is durable."""
        self.wait(lambda done: self.directory.trimmer.delete_records(log, offset, done))

    def truncate(self, log: Log, offset: int) -> None:
        """Cut the log's end and wait until that is durable."""
        self.wait(lambda done: self.directory.trimmer.truncate(log, offset, done))

    def kill(self) -> None:
        """End the process at once; the machine, and with it the page cache, stays."""
        self.disk.heal()
        self.disk.sync_filesystem("/")
        self.files = self.disk.crash(self.rng)

    def path_of(self, base_offset: int, suffix: Suffix, partition: TopicPartition = CLICKS) -> str:
        return f"{self.path}/{partition}/{segment_name(base_offset, suffix)}"

    def names(self, partition: TopicPartition = CLICKS) -> list[str]:
        return self.files.list(f"{self.path}/{partition}")


def append(
    world: World,
    log: Log,
    count: int = 1,
    *,
    size: int = 10,
    epoch: int = 0,
    timestamp: int | None = None,
    **fields: Any,
) -> Append:
    """Append one batch of `count` records whose values are their offsets."""
    now_ms = world.clock.now_ms()
    values = numbered(log.reserved_offset, count, size)
    batch = batch_of(values, timestamp=now_ms if timestamp is None else timestamp, **fields)
    return log.append_as_leader([batch], epoch, now_ms)


def grown(world: World, batches: int, count: int = 5, **topic: Any) -> Log:
    """A log of equal batches in segments of a few each, flushed."""
    log = world.log(segment_bytes=700, index_interval_bytes=0, **topic)
    for _ in range(batches):
        world.clock.advance_ms(10)
        append(world, log, count)
    world.flush(log)
    return log


def lines(log: Log) -> list[Line]:
    """Offset and value of every record in the log's files; all batches are whole and sound."""
    found: list[Line] = []
    for segment in log.segments if log.has_files else ():
        data, position = segment.file.read(0, segment.file.size()), 0
        while position < len(data):
            found += [(record.offset, record.value) for record in read_batch(data, position)]
            position += read_header(data, position).size
    return found


def expected_lines(end: int, start: int = 0, size: int = 10) -> list[Line]:
    """What `append` has written from `start` to `end`."""
    return list(enumerate(numbered(start, end - start, size), start))


def find_by_timestamp(log: Log, timestamp: int) -> TimestampedOffset | None:
    """The first record of this timestamp or a later one, looked up without a pause."""
    return run_steps(finding_by_timestamp(log, timestamp))


def overwrite(files: Disk | SimulatedDisk, path: str, content: bytes) -> None:
    """Replace a file's content, as somebody with an editor would."""
    file = files.open(path) if files.exists(path) else files.create(path)
    file.truncate(0)
    file.write([content], 0)
    file.close()


def flip(files: Disk | SimulatedDisk, path: str, position: int, mask: int = 1) -> None:
    """Flip bits of one byte of a file."""
    file = files.open(path)
    (byte,) = file.read(position, 1)
    file.write([bytes([byte ^ mask])], position)
    file.close()


def on_real_disk(tmp_path: Path, **arguments: Any) -> World:
    """A world on the machine's own disk."""
    return World(Disk(), str(tmp_path), **arguments)
