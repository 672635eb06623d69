"""The cleaner: which log it takes, what it leaves, and what it does about what is in the way."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest
from cleaning_world import LEFT, ROUND, SETTINGS, A, B, C, CleaningWorld, dirty, pairs_in

from kdist.errors import ApiError, DiskFailed
from kdist.storage.cleaning.cleaner import ThreadWorker
from kdist.storage.cleaning.pass_runner import PassRunner
from kdist.storage.cleaning.requests import Fault, MapKeys, NoteProducers, Report, Request, Rewrite
from kdist.storage.names import CLEANER_OFFSETS, Suffix
from kdist.storage.reading import read
from tests.unit.storage.storage_world import CLICKS, VIEWS, batch_of, find_by_timestamp, flip


def test_the_last_record_of_each_key_stays_with_its_offset() -> None:
    world = dirty()
    log = world.log()
    world.clean()
    assert pairs_in(log) == LEFT
    assert (log.start_offset, log.end_offset, log.first_dirty_offset) == (0, 5, 5)
    assert world.cleaned.passes == 1
    assert world.cleaned.removed_records == 2
    found = find_by_timestamp(log, 0)
    assert found is not None
    assert found.offset == 2


def test_small_segments_become_one() -> None:
    world = dirty(segment_bytes=400)
    for _ in range(5):
        world.put([(A, b"x")])
        world.close_segment()
    before = len(world.log().segments)
    world.clean()
    assert len(world.log().segments) < before - 3
    assert [name for name in world.names() if name.endswith((".swap", ".cleaned"))] == []


def test_what_was_cleaned_is_so_after_a_restart_and_a_power_loss() -> None:
    world = dirty()
    world.clean()
    world.lose_power()
    log = world.open().logs[CLICKS]
    assert pairs_in(log) == LEFT
    assert log.first_dirty_offset == 5
    world.restart()
    assert pairs_in(world.directory.logs[CLICKS]) == LEFT


def test_a_reader_goes_on_with_what_it_began_to_read() -> None:
    world = dirty()
    part = read(world.log(), 0, 10_000)
    assert part is not None
    before = part.read()
    world.clean()
    world.tasks.run_for_ms(200_000)  # by when the old files are unlinked
    assert part.read() == before
    assert part.generation == part.segment.generation
    part.release()


@pytest.mark.parametrize("timestamp", [None, -1])
def test_after_a_restart_a_cleaned_segment_is_as_old_as_what_it_was_made_of(
    timestamp: int | None,
) -> None:
    policy = {"cleanup_policy": ("compact", "delete"), "retention_ms": 100_000}
    world = CleaningWorld(topic=replace(SETTINGS, **policy))  # type: ignore[arg-type]
    world.put(ROUND, timestamp=timestamp)
    world.close_segment()
    world.settle(50_000)
    world.clean()
    assert pairs_in(world.log()) == LEFT
    world.restart()
    for wait_ms, deleted in ((40_000, 0), (15_000, 1)):
        world.settle(wait_ms)
        assert world.directory.trimmer.retain(lambda log: log.end_offset) == deleted


def test_the_dirtiest_log_is_cleaned_first() -> None:
    world = CleaningWorld()
    world.put([(A, b"1"), *[(b"%d" % n, b"x") for n in range(20)]])
    world.put([(A, b"1"), *[(b"%d" % n, b"x") for n in range(20)]], VIEWS)
    for partition in (CLICKS, VIEWS):
        world.close_segment(partition)
    world.clean()
    assert world.cleaned.passes == 2
    world.put([(A, b"2")] * 25, CLICKS)
    world.put([(A, b"2")] * 40, VIEWS)
    for partition in (CLICKS, VIEWS):
        world.close_segment(partition)
    world.tasks.run_until(lambda: world.cleaned.passes == 3, 1_000)
    assert world.log(VIEWS).first_dirty_offset == 61
    assert world.log(CLICKS).first_dirty_offset == 21


def test_a_log_that_is_not_dirty_enough_is_left() -> None:
    world = dirty(min_cleanable_dirty_ratio=0.6)
    world.clean()
    world.put([(A, b"6")])
    world.close_segment()
    world.clean()
    assert world.cleaned.passes == 1
    world.put([(A, b"7")] * 10)
    world.close_segment()
    world.clean()
    assert world.cleaned.passes == 2


def test_records_stay_for_the_minimum_lag() -> None:
    world = dirty(min_compaction_lag_ms=10_000)
    world.clean()
    assert world.cleaned.passes == 0
    world.settle(10_000)
    assert pairs_in(world.log()) == LEFT


def test_without_a_minimum_lag_a_timestamp_in_the_future_holds_up_nothing() -> None:
    world = CleaningWorld()
    world.put([(A, b"1"), (A, b"2")], timestamp=world.clock.now_ms() + 3_600_000)
    world.close_segment()
    world.clean()
    assert pairs_in(world.log()) == [(1, A, b"2")]


def test_a_record_that_has_waited_for_the_maximum_lag_forces_a_pass() -> None:
    world = dirty(min_cleanable_dirty_ratio=0.6, max_compaction_lag_ms=10_000)
    world.clean()
    world.put([(A, b"6")])
    world.close_segment()
    world.clean()
    assert world.cleaned.passes == 1
    world.settle(10_500)
    assert world.cleaned.passes == 2
    assert pairs_in(world.log()) == [*LEFT[1:], (5, A, b"6")]


def test_the_active_segment_closes_at_the_maximum_lag() -> None:
    world = CleaningWorld(topic=replace(SETTINGS, max_compaction_lag_ms=5_000))
    log = world.put([(A, b"1")])
    world.settle(6_000)
    world.put([(A, b"2")])
    assert len(log.segments) == 2


def test_nothing_above_the_high_watermark_counts_or_goes() -> None:
    world = CleaningWorld(topic=replace(SETTINGS, min_cleanable_dirty_ratio=0.0))
    world.put(ROUND)
    world.close_segment()
    world.put([(A, b"6"), (B, b"7")])
    world.close_segment()
    world.high_watermarks[CLICKS] = 6
    world.clean()
    assert pairs_in(world.log()) == [*LEFT, (5, A, b"6"), (6, B, b"7")]
    world.high_watermarks[CLICKS] = 7
    world.clean()
    assert pairs_in(world.log()) == [(3, C, b"4"), (5, A, b"6"), (6, B, b"7")]


def test_nothing_that_is_not_flushed_counts_or_goes() -> None:
    """As after a flush that found the disk full; a power loss may take the later record."""
    world = CleaningWorld()
    log = world.put(ROUND)
    log.roll(world.clock.now_ms())
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "create")
    world.settle()
    world.disk.heal()
    assert (log.recovery_point, log.active.base_offset) == (0, 5)
    world.clean()
    assert len(pairs_in(log)) == 5
    world.flush(log)
    world.settle()
    assert pairs_in(log) == LEFT


def test_a_tombstone_stays_for_its_time_and_while_a_replica_is_behind() -> None:
    world = dirty(delete_retention_ms=60_000, min_cleanable_dirty_ratio=0.0)
    world.put([(A, None)])
    world.close_segment()
    world.clean()
    tombstone = (5, A, None)
    assert pairs_in(world.log()) == [*LEFT[1:], tombstone]
    world.is_fully_in_sync = False
    world.settle(60_000)
    world.put([(C, b"6")])
    world.close_segment()
    world.clean()
    assert pairs_in(world.log()) == [LEFT[2], tombstone, (6, C, b"6")]
    world.is_fully_in_sync = True
    world.put([(C, b"7")])
    world.close_segment()
    world.clean()
    assert pairs_in(world.log()) == [LEFT[2], (7, C, b"7")]


def test_a_policy_of_both_deletes_old_segments_too() -> None:
    world = dirty(cleanup_policy=("compact", "delete"), retention_ms=50_000)
    world.clean()
    assert pairs_in(world.log()) == LEFT
    world.settle(60_000)
    world.put([(A, b"6")])
    world.directory.trimmer.retain(lambda log: log.end_offset)
    world.settle()
    assert pairs_in(world.log()) == [(5, A, b"6")]


def test_a_producers_last_sequence_outlives_its_records() -> None:
    world = CleaningWorld()
    for sequence in range(3):
        world.put([(A, b"x")], producer_id=9, producer_epoch=0, base_sequence=sequence)
    world.put([(A, b"last")])
    world.close_segment()
    world.clean()
    assert pairs_in(world.log()) == [(3, A, b"last")]
    for name in world.names():
        if name.endswith(".snapshot"):
            world.files.remove(f"{world.path}/{CLICKS}/{name}")
    world.stop()
    for name in world.names():
        if name.endswith(".snapshot"):
            world.files.remove(f"{world.path}/{CLICKS}/{name}")
    producer = world.open().logs[CLICKS].producers.producer(9)
    assert producer is not None
    assert producer.last_sequence == 2


def test_a_last_sequence_outlives_its_records_though_the_next_was_being_written_and_failed() -> (
    None
):
    world = CleaningWorld()
    for sequence in range(3):
        world.put([(A, b"x")], producer_id=9, producer_epoch=0, base_sequence=sequence)
    world.put([(A, b"last")])
    world.close_segment()
    log, now_ms = world.log(), world.clock.now_ms()
    batch = batch_of([b"y"], producer_id=9, producer_epoch=0, base_sequence=3)
    append = log.defer(log.prepare_as_leader([batch], 0, now_ms))
    world.clean()
    assert world.cleaned.passes == 1
    log.abandon(append)
    for name in world.names():
        if name.endswith(".snapshot"):
            world.files.remove(f"{world.path}/{CLICKS}/{name}")
    world.kill()
    producer = world.open().logs[CLICKS].producers.producer(9)
    assert producer is not None
    assert producer.last_sequence == 2


def test_a_truncation_brings_back_a_sequence_whose_batch_was_cleaned_away_for_a_newer_one() -> None:
    """Though the process was killed before the snapshot behind it was written."""
    world = CleaningWorld(topic=replace(SETTINGS, min_cleanable_dirty_ratio=0.0))
    world.put([(A, b"1")], producer_id=9, producer_epoch=0, base_sequence=0)
    world.put([(A, b"2")])
    world.log().roll(world.clock.now_ms())
    world.kill()
    world.start_cleaner()
    world.put([(A, b"3")], producer_id=9, producer_epoch=0, base_sequence=1)
    world.flush(world.log())
    world.high_watermarks[CLICKS] = 2
    world.clean()
    log = world.log()
    assert pairs_in(log) == [(1, A, b"2"), (2, A, b"3")]
    world.truncate(log, 2)
    producer = log.producers.producer(9)
    assert producer is not None
    assert producer.last_sequence == 0


def test_a_truncation_below_what_was_cleaned_empties_the_log() -> None:
    """What was removed may have had its later record in what is cut: the leader has it."""
    world = dirty()
    world.clean()
    log = world.log()
    world.truncate(log, 3)
    assert (log.start_offset, log.end_offset, log.first_dirty_offset) == (0, 0, 0)
    assert pairs_in(log) == []


def test_a_truncation_above_what_was_cleaned_is_only_that() -> None:
    world = dirty()
    world.clean()
    log = world.put([(A, b"6"), (B, b"7")])
    world.truncate(log, 6)
    assert pairs_in(log) == [*LEFT, (5, A, b"6")]
    assert log.first_dirty_offset == 5


class HeldWorker:
    """A `ThreadWorker` of the world's, whose reports wait until they are `let` through."""

    def __init__(self, world: CleaningWorld) -> None:
        self._world = world
        self._inner: ThreadWorker | None = None
        self._waiting: list[tuple[Report, Callable[[Report], None]]] = []
        self.left = 0

    @property
    def is_holding(self) -> bool:
        return bool(self._waiting)

    def ask(self, request: Request, on_report: Callable[[Report], None]) -> None:
        world = self._world
        self._inner = self._inner or ThreadWorker(world.files, world.clock, world.tasks)
        self._inner.ask(request, lambda report: self._answer(report, on_report))

    def _answer(self, report: Report, on_report: Callable[[Report], None]) -> None:
        if self.left:
            self.left -= 1
            on_report(report)
        else:
            self._waiting.append((report, on_report))

    def let(self, count: int) -> None:
        self.left += count
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self.left -= 1
            each[1](each[0])

    def abandon(self) -> None:
        assert self._inner is not None
        self._inner.abandon()


@pytest.mark.parametrize("answered", [0, 1])
def test_a_truncation_within_a_pass_takes_no_record_with_it_that_stays(answered: int) -> None:
    """As after an unclean election: what the map knows of later records is true no more."""
    world = CleaningWorld()
    world.stop()
    worker = HeldWorker(world)
    world.start_cleaner(worker)
    log = world.put([(b"%d" % number, b"x" * 60) for number in range(10)])
    world.put([(b"%d" % number, b"y" * 60) for number in range(10)])
    world.close_segment()
    before = pairs_in(log)[:11]
    assert len(log.segments) > 5
    worker.left = answered
    world.cleaner.start()
    world.tasks.run_until(lambda: worker.is_holding, 1_000)
    world.truncate(log, 11)
    world.put([(C, b"of the new leader")])
    world.close_segment()
    worker.let(1)
    world.settle(50)
    assert pairs_in(log) == [*before, (11, C, b"of the new leader")]
    assert world.cleaned.abandoned_passes == 1
    worker.let(100)
    world.settle(1_000)
    assert pairs_in(log) == [
        *[(number, b"%d" % number, b"x" * 60) for number in range(1, 10)],
        (10, b"0", b"y" * 60),
        (11, C, b"of the new leader"),
    ]
    assert not world.failures


def test_a_pass_over_a_log_that_is_deleted_is_given_up() -> None:
    world = dirty()
    world.clean(1)
    world.delete()
    world.settle(1_000)
    assert world.cleaned.passes == 0
    assert world.cleaned.abandoned_passes == 1
    assert not world.failures


def test_a_damaged_log_is_left_alone_and_others_are_cleaned() -> None:
    world = dirty()
    world.put(ROUND, VIEWS)
    world.close_segment(VIEWS)
    flip(world.files, world.path_of(0, Suffix.LOG), 80)
    world.clean(2_000)
    assert world.cleaned.uncleanable_partitions == 1
    assert world.log().first_dirty_offset == 0
    assert pairs_in(world.log(VIEWS)) == LEFT


def test_a_damaged_log_that_is_not_to_be_compacted_any_more_is_not_told_of() -> None:
    world = dirty()
    flip(world.files, world.path_of(0, Suffix.LOG), 80)
    world.clean()
    assert world.cleaned.uncleanable_partitions == 1
    world.log().configure(replace(SETTINGS, cleanup_policy=("delete",)))
    world.clean()
    assert world.cleaned.uncleanable_partitions == 0
    world.log().configure(SETTINGS)
    world.clean()
    assert world.cleaned.uncleanable_partitions == 1


class DyingWorker:
    """One whose process ends at each request, until it is `mended`."""

    def __init__(self) -> None:
        self.asked = 0
        self.abandoned = 0

    def ask(self, request: Request, on_report: Callable[[Report], None]) -> None:
        self.asked += 1
        on_report(Report(fault=Fault.DIED, reason="it ended with status -9"))

    def abandon(self) -> None:
        self.abandoned += 1


def test_a_cleaner_that_dies_is_asked_again_after_longer_and_longer_times() -> None:
    world = dirty()
    worker = DyingWorker()
    world.stop()
    world.start_cleaner(worker)
    world.clean(50)
    assert (worker.asked, world.cleaned.deaths, world.cleaned.is_dead) == (1, 1, 1)
    world.settle(150)
    assert worker.asked == 1
    world.settle(10_000)
    assert worker.asked == 3
    assert world.cleaned.uncleanable_partitions == 1
    world.cleaner.stop()
    assert worker.abandoned == 1


class RecordingWorker(ThreadWorker):
    """One that tells what it is asked."""

    def __init__(self, world: CleaningWorld) -> None:
        super().__init__(world.files, world.clock, world.tasks)
        self.requests: list[Request] = []

    def ask(self, request: Request, on_report: Callable[[Report], None]) -> None:
        self.requests.append(request)
        super().ask(request, on_report)


def test_settings_that_change_are_those_of_the_next_request() -> None:
    world = dirty()
    world.cleaner._worker = worker = RecordingWorker(world)
    slow = replace(world.storage, cleaner_io_max_bytes_per_second=2_000)
    world.cleaner.configure(replace(slow, cleaner_dedupe_buffer_size=1 << 21))
    world.cleaner.start()
    world.tasks.run_until(lambda: bool(worker.requests), 1_000)
    world.cleaner.configure(replace(slow, cleaner_io_max_bytes_per_second=3_000))
    world.settle(1_000)
    first, second, *_ = worker.requests
    assert isinstance(first, MapKeys)
    assert isinstance(second, Rewrite)
    assert (first.bytes_per_second, second.bytes_per_second) == (2_000, 3_000)


def test_many_short_passes_keep_to_the_rate_as_one_long_one() -> None:
    world, waited_ms = dirty(cleanup_policy=("compact",)), 0.0
    world.cleaner._worker = worker = RecordingWorker(world)
    world.cleaner.configure(replace(world.storage, cleaner_io_max_bytes_per_second=100_000))
    world.cleaner.start()
    world.tasks.run_until(lambda: bool(worker.requests), 1_000)

    def wait_ms(ms: float) -> None:
        nonlocal waited_ms
        waited_ms += ms
        world.clock.advance_ms(ms)

    runner = PassRunner(world.files, world.clock, wait_ms)
    # Each by itself takes less than what is waited for at least.
    read_bytes = sum(runner.answer(worker.requests[0]).read_bytes for _ in range(50))
    assert read_bytes > 10_000
    assert waited_ms >= read_bytes / 100_000 * 1000 - 20


def test_a_pass_tells_of_producers_once_and_of_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many groups of segments it rewrites, and without a long step of the loop."""
    monkeypatch.setattr("kdist.storage.cleaning.cleaner._PRODUCERS_AT_A_TIME", 4)
    world = CleaningWorld()
    for producer_id in range(10):
        world.put([(A, b"x" * 100)], producer_id=producer_id, producer_epoch=0, base_sequence=0)
    world.close_segment()
    world.cleaner._worker = worker = RecordingWorker(world)
    world.clean(5_000)
    kinds = [type(each) for each in worker.requests]
    assert kinds[: kinds.index(Rewrite)] == [MapKeys, *[NoteProducers] * 3]
    assert kinds.count(Rewrite) > 2
    assert kinds.count(NoteProducers) == 3
    noted = [each for each in worker.requests if isinstance(each, NoteProducers)]
    told = [one for each in noted for one in each.producers]
    assert told == [(number, number) for number in range(10)]
    assert [offset for offset, _, _ in pairs_in(world.log())] == [9]
    for name in world.names():
        if name.endswith(".snapshot"):
            world.files.remove(f"{world.path}/{CLICKS}/{name}")
    world.kill()
    assert len(world.open().logs[CLICKS].producers) == 10  # their last batches are there


def test_a_log_that_is_deleted_while_producers_are_told_of_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kdist.storage.cleaning.cleaner._PRODUCERS_AT_A_TIME", 1)
    world = dirty()
    for producer_id in range(3):
        world.put([(A, b"x")], producer_id=producer_id, producer_epoch=0, base_sequence=0)
    world.close_segment()
    world.cleaner._worker = worker = RecordingWorker(world)
    world.cleaner.start()
    world.tasks.run_until(lambda: len(worker.requests) == 2, 1_000)
    world.delete()
    world.settle(1_000)
    assert (world.cleaned.abandoned_passes, len(worker.requests), world.failures) == (1, 2, [])


def test_a_shorter_backoff_holds_at_once() -> None:
    world = CleaningWorld(cleaner_backoff_ms=3_600_000)
    world.clean()
    world.put(ROUND)
    world.close_segment()
    world.settle(10_000)
    assert world.cleaned.passes == 0
    world.cleaner.configure(replace(world.storage, cleaner_backoff_ms=1_000))
    world.settle(2_000)
    assert world.cleaned.passes == 1


def test_a_disk_that_fails_under_the_cleaner_ends_the_broker_as_a_failed_disk() -> None:
    class FailingWorker(DyingWorker):
        def ask(self, request: Request, on_report: Callable[[Report], None]) -> None:
            on_report(Report(fault=Fault.DISK, reason="the disk under /d failed: I/O error"))

    world = dirty()
    world.stop()
    world.start_cleaner(FailingWorker())
    with pytest.raises(DiskFailed):
        world.clean()


def test_a_cleaner_that_is_not_enabled_does_nothing() -> None:
    world = CleaningWorld(cleaner_enable=False)
    world.put(ROUND)
    world.close_segment()
    world.clean()
    assert world.cleaned.passes == 0


def test_how_far_it_has_come_is_in_kafkas_checkpoint() -> None:
    world = dirty()
    world.clean()
    assert world.files.read(f"{world.path}/{CLEANER_OFFSETS}") == b"0\n1\nclicks 0 5\n"
    world.delete()
    assert world.files.read(f"{world.path}/{CLEANER_OFFSETS}") == b"0\n0\n"


def test_a_topic_that_is_compacted_no_more_keeps_its_gaps_through_a_kill() -> None:
    world = dirty()
    world.clean()
    world.topic = replace(world.topic, cleanup_policy=("delete",))
    world.log().configure(world.topic)
    world.put([(A, b"6")])
    world.kill()
    log = world.open().logs[CLICKS]
    assert pairs_in(log) == [*LEFT, (5, A, b"6")]


def test_a_log_without_batches_of_magic_2_is_said_to_be_so() -> None:
    world = dirty()
    file = world.files.open(world.path_of(0, Suffix.LOG))
    file.write([b"\x01"], 16)
    world.clean(1_000)
    assert world.cleaned.uncleanable_partitions == 1


def test_retention_waits_for_a_swap() -> None:
    world = dirty()
    log = world.log()
    log.delete_records(4)
    world.cleaner.start()
    world.tasks.run_until(lambda: log.is_swapping, 1_000)
    assert world.directory.trimmer.retain(lambda each: each.end_offset) == 0
    with pytest.raises(ApiError):
        log.delete_records(100)
    world.settle(1_000)
    assert not log.is_swapping
