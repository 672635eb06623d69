"""Random histories of a log directory that loses power, beside a list in memory that does not.

A seed determines a `History`. It appends, flushes, rolls, truncates, deletes and retains, stops
cleanly, or loses power at a chosen call of the disk, then opens the directory again and compares.
"""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Callable

from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.metrics.storage import StorageMetrics
from kdist.model import TopicPartition
from kdist.records.batch import Batch, read_header
from kdist.records.build import build_batch, read_batch
from kdist.runtime.steps import run_steps
from kdist.storage.background import DirectoryContext
from kdist.storage.directory import LogDirectory, Schedule
from kdist.storage.log import Log
from kdist.storage.meta import Identity
from kdist.storage.reading import read
from kdist.storage.time_lookup import finding_by_timestamp
from kdist.testing.simulated_disk import SimulatedDisk
from kdist.testing.simulated_faults import PowerLoss
from kdist.testing.virtual_clock import VirtualClock
from tests.stepped_process import SteppedProcess
from tests.unit.storage.storage_world import append_all

PARTITIONS = [TopicPartition("clicks", 0), TopicPartition("clicks", 1)]
SETTINGS = TopicSettings(
    segment_bytes=1500, index_interval_bytes=200, flush_messages=50, retention_bytes=6000
)
STORAGE = StorageSettings(reserved_bytes=0, preallocation_step_bytes=4096, writeback_step_bytes=512)
TOPIC_ID = uuid.UUID(int=7)
PRODUCERS = 3


@dataclasses.dataclass
class Written:
    """One appended batch as the model remembers it."""

    start: int
    values: list[bytes]
    timestamp: int
    epoch: int
    producer_id: int

    @property
    def end(self) -> int:
        return self.start + len(self.values)


@dataclasses.dataclass
class Expected:
    """What one log must hold: the batches appended, and how far a flush was confirmed."""

    batches: list[Written] = dataclasses.field(default_factory=list)
    flushed_end: int = 0
    cut_to: int = 2**63  # where a truncation in progress cuts
    start_low: int = 0  # the start offset is at least this
    start_high: int = 0  # and at most this
    epoch: int = 0
    sequences: dict[int, int] = dataclasses.field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.start_high


class History:
    """One run. `check` is called after every opening of the directory."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        self.disk = SimulatedDisk(self.rng, self.clock)
        self.disk.make_directory("/d01")
        self.disk.sync_directory("/")
        self.expected = {partition: Expected() for partition in PARTITIONS}
        self.crashes = 0

    def run(self, operations: int) -> None:
        """Run this many operations, with crashes and stops between them."""
        left = operations
        while left > 0:
            steps = min(left, self.rng.randrange(1, 25))
            left -= steps
            self._live(steps)
        self._open()

    def _live(self, steps: int) -> None:
        """Open, work, and end cleanly or with a power loss."""
        ends_cleanly = self.rng.random() < 0.3
        if not ends_cleanly and self.rng.random() < 0.7:
            self.disk.crash_at(self.rng.randrange(1, 12 * steps + 40))
        try:
            self._open()
            for _ in range(steps):
                self._step()
            if ends_cleanly:
                self.schedule.stop()
                self.tasks.run_for_ms(1000)
                self.directory.close()
                for partition, log in self.directory.logs.items():
                    self.expected[partition].flushed_end = log.end_offset
                return
            self.disk = self.disk.crash(self.rng)
        except PowerLoss:
            self.disk = self.disk.power_on(self.rng)
        self.crashes += 1

    def _open(self) -> None:
        self.tasks = SteppedProcess(self.clock, self.rng)
        context = DirectoryContext(
            files=self.disk,
            clock=self.clock,
            tasks=self.tasks,
            rng=self.rng,
            settings=STORAGE,
            metrics=StorageMetrics(),
            settings_of=lambda _topic: SETTINGS,
            on_failure=_fail,
        )
        self.directory = LogDirectory("/d01", Identity(1, "cluster"), context).open()
        for partition in PARTITIONS:
            if partition not in self.directory.logs:
                # Not even where it begins is kept of a log that was never flushed.
                assert not self.expected[partition].flushed_end
                self.expected[partition] = Expected()
                self.directory.create(partition, TOPIC_ID, SETTINGS)
            self._compare(self.directory.logs[partition], self.expected[partition])
        self.schedule = Schedule(self.directory, lambda log: log.recovery_point)
        self.schedule.start()

    # What a history is made of

    def _step(self) -> None:
        log = self.directory.logs[self.rng.choice(PARTITIONS)]
        expected = self.expected[log.partition]
        steps: list[tuple[int, Callable[[Log, Expected], None]]] = [
            (50, self._append),
            (12, self._flush),
            (10, self._pass_time),
            (5, self._truncate),
            (4, self._delete_records),
            (4, self._retain),
            (5, self._new_epoch),
        ]
        weights, choices = zip(*steps, strict=True)
        self.rng.choices(choices, weights)[0](log, expected)

    def _append(self, log: Log, expected: Expected) -> None:
        if log.is_busy and self.rng.random() < 0.5:
            return
        if log.partition in self.truncating:
            return
        written, start = [], log.end_offset
        batches = []
        is_group = self.rng.random() < 0.5
        for _ in range(self.rng.randrange(1, 10 if is_group else 4)):
            batch = self._make(start, expected)
            written.append(batch)
            batches.append(_encoded(batch, expected))
            start = batch.end
            if batch.producer_id >= 0 and not is_group:
                break
        expected.batches += written  # before the call: a power loss inside may keep any of them
        now_ms = self.clock.now_ms()
        if is_group:
            starts = append_all(log, batches, expected.epoch, now_ms)
            assert starts == [batch.start for batch in written]
        else:
            append = log.append_as_leader(batches, expected.epoch, now_ms)
            assert (append.start_offset, append.end_offset) == (written[0].start, start)

    def _make(self, start: int, expected: Expected) -> Written:
        count = self.rng.randrange(1, 8)
        values = [self.rng.randbytes(self.rng.randrange(60)) for _ in range(count)]
        timestamp = self.clock.now_ms() + self.rng.randrange(-50, 50)
        producer_id = self.rng.randrange(PRODUCERS) if self.rng.random() < 0.3 else -1
        return Written(start, values, timestamp, expected.epoch, producer_id)

    def _flush(self, log: Log, expected: Expected) -> None:
        end = log.end_offset

        def done(error: BaseException | None) -> None:
            # A truncation that was asked for in the meantime may cut it off again, or did.
            if error is None:
                end_low = min(end, expected.cut_to, expected.end)
                expected.flushed_end = max(expected.flushed_end, end_low)

        self.directory.flusher.request(log, done)

    def _pass_time(self, _log: Log, _expected: Expected) -> None:
        self.tasks.run_for_ms(self.rng.choice([1, 10, 2000, 400_000]))

    def _truncate(self, log: Log, expected: Expected) -> None:
        if log.partition in self.truncating or log.end_offset == log.start_offset:
            return
        offset = self.rng.randrange(log.start_offset, log.end_offset)
        kept = [batch for batch in expected.batches if batch.end <= offset]
        end = kept[-1].end if kept else log.segments[0].base_offset
        self.truncating.add(log.partition)
        expected.cut_to = end
        expected.flushed_end = min(expected.flushed_end, end)
        expected.start_low = min(expected.start_low, end)

        def done(error: BaseException | None) -> None:
            assert error is None
            self.truncating.discard(log.partition)
            expected.cut_to = 2**63
            self._forget_behind(log, expected)
            expected.flushed_end = log.end_offset

        self.directory.trimmer.truncate(log, offset, done)

    def _forget_behind(self, log: Log, expected: Expected) -> None:
        """Forget the batches that the log has lost, with their producers' state."""
        expected.batches = [batch for batch in expected.batches if batch.end <= log.end_offset]
        expected.sequences = {
            producer_id: (state.last_sequence + 1) & 0x7FFFFFFF
            for producer_id, state in log.producers.producers.items()
        }

    def _delete_records(self, log: Log, expected: Expected) -> None:
        if log.partition in self.truncating:
            return
        offset = self.rng.randrange(log.start_offset, log.end_offset + 1)
        expected.start_high = max(expected.start_high, offset)

        def done(error: BaseException | None) -> None:
            assert error is None
            expected.start_low = max(expected.start_low, min(offset, expected.cut_to))

        self.directory.trimmer.delete_records(log, offset, done)

    def _retain(self, log: Log, expected: Expected) -> None:
        self.schedule.retain()
        for partition, retained in self.directory.logs.items():
            other = self.expected[partition]
            other.start_high = max(other.start_high, retained.start_offset)

    def _new_epoch(self, _log: Log, expected: Expected) -> None:
        expected.epoch += 1

    # What must be true of a log that was just opened

    def _compare(self, log: Log, expected: Expected) -> None:
        self.truncating: set[TopicPartition] = set()
        assert log.end_offset >= expected.flushed_end, "a flushed record is missing"
        assert expected.start_low <= log.start_offset, "deleted records show again"
        assert log.start_offset <= max(expected.start_high, log.segments[0].base_offset)
        found = read_all(log)
        wanted = [
            (batch.start, batch.values, batch.timestamp, batch.epoch)
            for batch in expected.batches
            if log.segments[0].base_offset <= batch.start < log.end_offset
        ]
        assert found == wanted, "batches are torn, lost or out of order"
        assert not found or found[-1][0] + len(found[-1][1]) == log.end_offset
        assert log.recovery_point == log.end_offset
        check_indexes(log)
        check_lookups(log, self.rng)
        check_epochs(log)
        check_producers(log, expected)
        self._forget_behind(log, expected)
        expected.flushed_end = log.end_offset
        expected.cut_to = 2**63
        expected.start_low = expected.start_high = log.start_offset


def _encoded(batch: Written, expected: Expected) -> Batch:
    """The batch as its producer sends it, with the producer's next sequence."""
    producer_id, sequence = batch.producer_id, -1
    if producer_id >= 0:
        sequence = expected.sequences.get(producer_id, 0)
        expected.sequences[producer_id] = sequence + len(batch.values)
    data = build_batch(
        batch.values,
        timestamp_ms=batch.timestamp,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
    )
    return Batch(read_header(data), data)


def _fail(error: BaseException) -> None:
    raise AssertionError("the disk did not fail") from error


def read_all(log: Log) -> list[tuple[int, list[bytes | None], int, int]]:
    """Every batch of the log's files: start, values, timestamp, leader epoch."""
    found = []
    for segment in log.segments if log.has_files else ():
        data, position = segment.file.read(0, segment.size), 0
        assert len(data) == segment.size
        while position < len(data):
            header, records = read_header(data, position), read_batch(data, position)
            values = [record.value for record in records]
            epoch = header.partition_leader_epoch
            found.append((header.base_offset, values, header.max_timestamp, epoch))
            position += header.size
    return found


def check_indexes(log: Log) -> None:
    """Each entry must point to where it says."""
    for segment in log.segments if log.has_files else ():
        places = {header.last_offset: place for place, header in segment.walk_headers()}
        largest = -1
        so_far = {}
        for _, header in segment.walk_headers():
            largest = max(largest, header.max_timestamp)
            so_far[header.last_offset] = largest
        for entry in segment.offset_index:
            assert places[segment.base_offset + entry.key] == entry.value
        for entry in segment.time_index:
            assert so_far[segment.base_offset + entry.value] == entry.key
        assert segment.largest_timestamp[0] == largest


def check_lookups(log: Log, rng: random.Random) -> None:
    """Offsets and timestamps are found where a walk through all batches finds them."""
    batches = read_all(log)
    readable = [batch for batch in batches if batch[0] + len(batch[1]) > log.start_offset]
    for _ in range(5):
        if log.start_offset < log.end_offset:
            offset = rng.randrange(log.start_offset, log.end_offset)
            piece = read(log, offset, 1)
            assert piece is not None
            header = read_header(piece.read())
            piece.release()
            assert header.base_offset <= offset <= header.last_offset
    for timestamp in {batch[2] + rng.choice([-1, 0, 1]) for batch in readable[-3:]}:
        first = next((batch for batch in readable if batch[2] >= timestamp), None)
        found = run_steps(finding_by_timestamp(log, timestamp))
        if first is None:
            assert found is None
        else:
            assert found is not None
            assert found.offset == max(first[0], log.start_offset)
            assert (found.timestamp, found.leader_epoch) == (first[2], first[3])


def check_epochs(log: Log) -> None:
    """Each batch that can be read lies in its leader's epoch."""
    for start, values, _, epoch in read_all(log):
        if start >= log.start_offset:
            assert log.epochs.epoch_of(start + len(values) - 1) == epoch


def check_producers(log: Log, expected: Expected) -> None:
    """The last batch of each producer that is in the log is what the log knows of it."""
    last = {
        batch.producer_id: batch
        for batch in expected.batches
        if batch.producer_id >= 0 and log.start_offset < batch.end <= log.end_offset
    }
    for producer_id, batch in last.items():
        state = log.producers.producer(producer_id)
        assert state is not None
        assert state.batches[-1].last_offset == batch.end - 1
