"""A script of every kind of step, for tests that fail the disk's calls one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from storage_world import CLICKS, TOPIC_ID, World, batch_of, lines

from kdist.errors import DiskFull
from kdist.storage.log import Log
from kdist.storage.names import CLEAN_SHUTDOWN


def sweep(live: Callable[[int], bool], call: str, first: int = 0, *, at_least: int) -> None:
    """Run once for each call until there are no more; a failure says how to reproduce it."""
    n = first
    try:
        while live(n):
            n += 1
    except BaseException as error:
        error.add_note(f"to see it again: {call % n}")
        raise
    assert n > at_least


class Life:
    """A scripted life of a log directory, and what was confirmed in it.

    `run` may end anywhere with DiskFailed or PowerLoss. `check` then verifies that a log opened
    afterwards holds what it must, and nothing else.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.values: list[bytes] = []  # by offset: what the log holds, or held before a crash
        self.flushed_end = 0
        self.start_low = self.start_high = 0
        self.is_created = False
        self.log: Log = None  # type: ignore[assignment]  # until `create`
        self.refusals = 0  # how often a full disk was in the way

    def run(self, *, may_refuse: bool = False) -> None:
        """Run all steps; one that a full disk refuses is tried once more."""
        steps: list[Callable[[], None]] = [
            self.open,
            self.create,
            *[self.append] * 4,
            self.flush,
            *[self.append] * 5,
            partial(self.truncate, 17),
            *[self.append] * 3,
            partial(self.delete_records, 8),
            self.retain,
            self.append,
            self.flush,
            self.append,
            self.close,
            self.open,
            *[self.append] * 4,
            self.flush,
            self.append,
        ]
        for step in steps:
            try:
                step()
            except DiskFull:
                assert may_refuse
                self.refusals += 1
                step()
            if self.world.failures:
                raise self.world.failures[0]

    def open(self) -> None:
        self.world.open()
        if self.is_created:
            self.log = self.world.directory.logs[CLICKS]
            self.check(self.log)

    def create(self) -> None:
        settings = replace(self.world.topic, segment_bytes=350, index_interval_bytes=60)
        self.world.topic = replace(settings, retention_bytes=900)
        self.log = self.world.directory.create(CLICKS, TOPIC_ID, self.world.topic)
        self.is_created = True

    def append(self) -> None:
        """One batch of a producer; its values differ from those that had these offsets before."""
        now_ms, start = self.world.clock.now_ms(), self.log.end_offset
        self.world.clock.advance_ms(7)
        values = [b"%d at %d" % (start + number, now_ms) for number in range(3)]
        known = self.log.producers.producer(1)
        sequence = 0 if known is None else known.last_sequence + 1
        fields = {"producer_id": 1, "producer_epoch": 0, "base_sequence": sequence}
        before = self.values
        self.values = [*before[:start], *values]
        try:
            self.log.append_as_leader([batch_of(values, timestamp=now_ms, **fields)], 0, now_ms)
        except DiskFull:
            self.values = before
            assert self.log.end_offset == start
            raise

    def flush(self) -> None:
        end = self.log.end_offset
        self.world.flush(self.log)
        self.flushed_end = max(self.flushed_end, end)

    def truncate(self, offset: int) -> None:
        end = offset - offset % 3
        self.flushed_end = min(self.flushed_end, end)
        self.world.truncate(self.log, offset)
        self.values = self.values[: self.log.end_offset]
        assert self.log.end_offset == end
        self.flushed_end = self.log.recovery_point

    def delete_records(self, offset: int) -> None:
        self.start_high = offset
        self.world.delete_records(self.log, offset)
        self.start_low = offset

    def retain(self) -> None:
        self.world.directory.trimmer.retain(lambda log: log.recovery_point)
        self.start_high = max(self.start_high, self.log.start_offset)
        self.world.settle(100)

    def close(self) -> None:
        end = self.log.end_offset
        self.world.stop()
        if self.world.disk.exists(f"{self.world.path}/{CLEAN_SHUTDOWN}"):  # else it found no room
            self.flushed_end = end

    def check(self, log: Log) -> None:
        """All confirmed records are there, none is torn, and there are no others."""
        assert log.end_offset >= self.flushed_end, "a flushed record is missing"
        assert self.start_low <= log.start_offset, "deleted records show again"
        assert log.start_offset <= max(self.start_high, log.segments[0].base_offset)
        found = lines(log)
        assert found == [(offset, self.values[offset]) for offset, _ in found]
        assert [offset for offset, _ in found] == list(
            range(log.segments[0].base_offset, log.end_offset)
        )
        self.values = self.values[: log.end_offset]

    def check_missing(self) -> None:
        """There is no log, which is right only if it was never flushed."""
        assert self.flushed_end == 0, "the log with its flushed records is missing"
        self.values = []

    def check_after_the_crash(self) -> None:
        """Cut the power, start without faults, check the log and append to it."""
        self.world.failures.clear()
        if not self.world.disk.is_off:
            self.world.lose_power()
        else:
            self.world.files = self.world.disk.power_on(self.world.rng)
        self.world.open()
        if CLICKS not in self.world.directory.logs:
            self.check_missing()
            self.create()
        self.log = self.world.directory.logs[CLICKS]
        self.check(self.log)
        self.append()
        self.flush()
        self.check(self.log)
