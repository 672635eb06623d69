"""Random histories of a compacted log that is cleaned and loses power, beside a list in memory.

A seed determines a `History`. It appends, flushes, cleans, truncates, reads across a swap, stops
cleanly, is killed, or loses power at a chosen call of the disk. Whenever the log is opened, and
after each step, it must hold of all that was appended: each record where and as it was; the last of
each key, or neither it nor any older one, if it is a tombstone; and the producers' sequences.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from storage_world import CLICKS, World

from kdist.config.topic import TopicSettings
from kdist.errors import DiskFull
from kdist.metrics.storage import CleanerMetrics
from kdist.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from kdist.records.batch import Batch, is_partial, read_header
from kdist.records.build import build_batch, read_batch
from kdist.records.compression import Codec
from kdist.storage.cleaning.cleaner import Cleaner, CleanerHooks, ThreadWorker
from kdist.storage.directory import Schedule
from kdist.storage.log import Log
from kdist.storage.reading import Slice, read
from kdist.testing.simulated_faults import PowerLoss

SETTINGS = TopicSettings(
    cleanup_policy=("compact",),
    segment_bytes=900,
    index_interval_bytes=150,
    min_cleanable_dirty_ratio=0.1,
    delete_retention_ms=1_500,
    file_delete_delay_ms=300,
)
KEYS = 12
CODECS = [Codec.NONE, Codec.NONE, Codec.LZ4, Codec.GZIP]


class Line(NamedTuple):
    """One record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class History:
    """One run: `run` raises an `AssertionError` where the log is not what it must be."""

    def __init__(self, seed: int, settings: TopicSettings = SETTINGS) -> None:
        self.rng = random.Random(seed)
        self.world = World(seed=seed, topic=settings, cleaner_backoff_ms=50)
        self.lines: list[Line] = []  # all that was appended, without what was truncated or lost
        self.last_sequences: dict[int, list[tuple[int, int]]] = {}  # id: (sequence, last offset)
        self.starts = [0]  # of all batches, and the log's end
        self.flushed_end = 0
        self.high_watermark = 0
        self.held: list[tuple[Slice, bytes]] = []
        self.passes = self.crashes = self.removed = 0
        self.log: Log

    def run(self, steps: int) -> None:
        """Live, end in some way, and live again, until so many steps were made."""
        self._open()
        while steps > 0:
            lived = self.rng.randrange(5, 40)
            steps -= lived
            if self.rng.random() < 0.7:
                self.world.disk.crash_at(self.rng.randrange(1, 30 * lived))
            try:
                for _ in range(lived):
                    self._step()
                    self.check()
                self._end()
            except PowerLoss:
                self.world.files = self.world.disk.power_on(self.rng)
                self.crashes += 1
            self._open_despite_power_losses()
        self.check()

    def _open_despite_power_losses(self) -> None:
        """A start too may lose power anywhere."""
        while True:
            if self.rng.random() < 0.3:
                self.world.disk.crash_at(self.rng.randrange(1, 60))
            try:
                self._open()
            except PowerLoss:
                self.world.files = self.world.disk.power_on(self.rng)
                self.crashes += 1
            else:
                self.world.disk.heal()
                return

    def _end(self) -> None:
        self._release()
        self.passes += self.metrics.passes
        self.removed += self.metrics.removed_records
        if self.rng.random() < 0.4:
            self.schedule.stop()
            self.cleaner.stop()
            self.world.settle(1_000)
            self.world.directory.close()
            self.flushed_end = self.log.end_offset
        elif self.rng.random() < 0.5:
            self.world.kill()
            self.flushed_end = self.log.end_offset
        else:
            self.world.lose_power()
            self.crashes += 1

    def _open(self) -> None:
        self.held.clear()
        directory = self.world.open()
        assert not self.world.failures
        self.log = self.world.log()
        assert not self.lines or CLICKS in directory.logs
        assert self.log.end_offset >= self.flushed_end
        self._forget_from(self.log.end_offset)
        self.check()
        self.flushed_end = self.log.end_offset  # an opened log was flushed
        self.metrics = CleanerMetrics()
        hooks = CleanerHooks(lambda _: self.high_watermark, lambda _: self.rng.random() < 0.7)
        world = self.world
        worker = ThreadWorker(world.files, world.clock, world.tasks)
        self.cleaner = Cleaner(directory, worker, hooks, self.metrics)
        self.cleaner.start()
        self.schedule = Schedule(directory, lambda _: self.high_watermark)
        self.schedule.start()

    def _forget_from(self, offset: int) -> None:
        self.lines = [line for line in self.lines if line.offset < offset]
        for sequences in self.last_sequences.values():
            while sequences and sequences[-1][1] >= offset:
                sequences.pop()
        self.starts = [start for start in self.starts if start < offset] + [offset]
        self.high_watermark = min(self.high_watermark, offset)

    # Steps

    def _step(self) -> None:
        steps = [self._append] * 8 + [self._commit] * 3 + [self._wait] * 5
        steps += [self._flush, self._truncate, self._hold, self._release]
        self.rng.choice(steps)()
        assert not self.world.failures

    def _append(self) -> None:
        if self.log.is_truncating:
            return
        count = self.rng.choice([1, 1, 2, 5])
        start, now_ms = self.log.reserved_offset, self.world.clock.now_ms()
        keys = [b"key-%d" % self.rng.randrange(KEYS) for _ in range(count)]
        values = [
            None if self.rng.random() < 0.2 else b"%d" % (start + n) + bytes(self.rng.randrange(60))
            for n in range(count)
        ]
        producer, epoch, sequence = NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE
        if self.rng.random() < 0.4:
            producer, epoch = self.rng.randrange(1, 4), 0
            before = self.last_sequences.setdefault(producer, [])
            sequence = before[-1][0] + 1 if before else 0
        data = build_batch(
            values,
            keys,
            timestamps=[now_ms - self.rng.randrange(100) for _ in range(count)],
            timestamp_ms=now_ms,
            codec=self.rng.choice(CODECS),
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        # Noted before the write: after a power loss during it the batch may be there or not.
        made = read_batch(data)
        self.lines += [
            Line(start + n, each.timestamp, each.key, each.value) for n, each in enumerate(made)
        ]
        self.starts.append(start + count)
        if producer >= 0:
            self.last_sequences[producer].append((sequence + count - 1, start + count - 1))
        self.log.append_as_leader([Batch(read_header(data), data)], 0, now_ms)
        assert self.log.end_offset == start + count

    def _above(self) -> list[int]:
        """Where batches begin or end that are not committed."""
        return [start for start in self.starts if start >= self.high_watermark]

    def _commit(self) -> None:
        self.high_watermark = self.rng.choice(self._above())

    def _wait(self) -> None:
        self.world.settle(self.rng.choice([1, 5, 30, 200, 1_000]))

    def _flush(self) -> None:
        self.world.flush(self.log)
        self.flushed_end = max(self.flushed_end, self.log.end_offset)

    def _truncate(self) -> None:
        offset = self.rng.choice(self._above())
        self.flushed_end = min(self.flushed_end, offset)
        self.world.truncate(self.log, offset)
        assert self.log.end_offset == offset
        self._forget_from(self.log.end_offset)

    def _hold(self) -> None:
        """Begin to read: what is read stays the same, whatever the cleaner does."""
        if not self.log.start_offset < self.log.end_offset:
            return
        offset = self.rng.randrange(self.log.start_offset, self.log.end_offset)
        part = read(self.log, offset, 400)
        if part is not None:
            self.held.append((part, part.read()))

    def _release(self) -> None:
        for part, data in self.held:
            if part.generation == part.segment.generation:  # else a truncation has cut it
                assert part.read() == data
            part.release()
        self.held.clear()

    # What must hold

    def check(self) -> None:
        """Compare the log, as its readers see it, with all that was appended."""
        found = readable(self.log)
        by_offset = {line.offset: line for line in self.lines}
        assert [line.offset for line in found] == sorted({line.offset for line in found})
        for line in found:
            assert by_offset.get(line.offset) == line
        last: dict[bytes | None, Line] = {line.key: line for line in self.lines}
        there = {line.offset for line in found}
        keys_there = {line.key for line in found}
        for key, line in last.items():
            is_there = line.offset in there
            assert is_there or (line.value is None and key not in keys_there), line
        limit = min(self.high_watermark, self.log.recovery_point, self.log.active.base_offset)
        assert {line for line in self.lines if line.offset >= limit} <= set(found)
        for number, sequences in self.last_sequences.items():
            state = self.log.producers.producer(number)
            if sequences:
                assert state is not None
                assert state.last_sequence == sequences[-1][0]


def readable(log: Log) -> Sequence[Line]:
    """All records, fetched as a consumer does; empty batches and gaps are passed over."""
    found: list[Line] = []
    offset = log.start_offset
    while (part := read(log, offset, 600)) is not None:
        data = part.read()
        part.release()
        at = 0
        while at < len(data) and not is_partial(data, at):
            header = read_header(data, at)
            assert header.last_offset >= offset
            found += [
                Line(each.offset, each.timestamp, each.key, each.value)
                for each in read_batch(data, at)
            ]
            at += header.size
            offset = header.next_offset
        assert at
    return found


def run(seed: int, steps: int) -> History:
    """A whole history; the seed is in the error of one that fails."""
    history = History(seed)
    try:
        history.run(steps)
    except DiskFull:
        raise AssertionError(f"seed {seed}: no disk was full") from None
    return history
