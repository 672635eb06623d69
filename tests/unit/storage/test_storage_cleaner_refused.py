"""The cleaner where something is refused to it, amid producers, and in random histories."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cleaning_history import run
from cleaning_world import LEFT, ROUND, SETTINGS, A, CleaningWorld, dirty, pairs_in

from kdist.errors import DiskFull
from kdist.model import TopicPartition
from kdist.runtime.disk import Disk
from kdist.runtime.steps import run_steps
from kdist.storage.cleaning.cleaner import ThreadWorker
from kdist.storage.cleaning.requests import Fault, MapKeys, Report, Request, Rewrite
from kdist.storage.names import FileState, Suffix
from kdist.storage.time_lookup import finding_newest
from kdist.testing.simulated_faults import Call
from tests.examples import first_of
from tests.unit.storage.storage_world import CLICKS, VIEWS, find_by_timestamp


def test_a_full_disk_delays_a_pass_and_harms_nothing() -> None:
    world = dirty()
    world.disk.fill(world.disk.used_bytes() + 100)
    world.clean(2_000)
    assert world.cleaned.passes == 0
    assert world.cleaned.abandoned_passes > 1
    world.disk.fill(1 << 40)
    world.settle(1_000)
    assert pairs_in(world.log()) == LEFT


class RefusingWorker(ThreadWorker):
    """One that finds no room beside `CLICKS`' segments."""

    def __init__(self, world: CleaningWorld) -> None:
        super().__init__(world.files, world.clock, world.tasks)
        self.refused = 0

    def ask(self, request: Request, on_report: Callable[[Report], None]) -> None:
        if isinstance(request, MapKeys) and CLICKS.topic in request.directory:
            self.refused += 1
            on_report(Report(fault=Fault.FULL, reason="no room"))
        else:
            super().ask(request, on_report)


def test_a_log_whose_pass_is_given_up_keeps_no_other_from_being_cleaned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = dirty()
    world.cleaner._worker = RefusingWorker(world)
    for _ in range(3):
        world.put(ROUND, VIEWS)
        world.close_segment(VIEWS)
        passes = world.cleaned.passes
        world.clean(1_000)
        assert world.cleaned.passes > passes
    assert pairs_in(world.log(VIEWS)) == [(offset + 10, *pair) for offset, *pair in LEFT]
    assert world.log().first_dirty_offset == 0
    assert caplog.text.count("gives up for now: no room") == 1


def test_nor_do_many_such_logs_that_are_given_up_again_and_again() -> None:
    """Though each was given up long ago by the time that the last one is, and is the dirtier."""
    world = CleaningWorld(topic=replace(SETTINGS, min_cleanable_dirty_ratio=0.0))
    world.put(ROUND, VIEWS)
    world.close_segment(VIEWS)
    world.clean()
    world.cleaner._worker = RefusingWorker(world)
    for number in range(25):
        partition = TopicPartition(CLICKS.topic, number)
        world.put(ROUND, partition)
        world.close_segment(partition)
    for passes in (2, 3):
        world.put(ROUND, VIEWS)
        world.close_segment(VIEWS)
        world.clean(10_000)
        assert world.cleaned.passes == passes


class BusyWorker(RefusingWorker):
    """One that leaves one of these logs due at the end of each pass over the other."""

    BUSY = (VIEWS, TopicPartition(VIEWS.topic, 4))

    def __init__(self, world: CleaningWorld) -> None:
        super().__init__(world)
        self._world = world

    def ask(self, request: Request, on_report: Callable[[Report], None]) -> None:
        if isinstance(request, MapKeys) and VIEWS.topic in request.directory:
            other = self.BUSY[request.directory.endswith(str(self.BUSY[0]))]
            self._world.put(ROUND, other).roll(self._world.clock.now_ms())
        super().ask(request, on_report)


def test_a_log_whose_pass_is_given_up_has_its_turn_though_others_are_due_all_the_time() -> None:
    world = CleaningWorld(topic=replace(SETTINGS, min_cleanable_dirty_ratio=0.0))
    world.cleaner._worker = worker = BusyWorker(world)
    for partition in (CLICKS, *worker.BUSY):
        world.put(ROUND, partition)
        world.close_segment(partition)
    world.clean(10_000)
    assert 2 < worker.refused < world.cleaned.passes / 5


def test_how_long_a_log_has_been_due_counts_whatever_happens_to_others() -> None:
    world = dirty()
    world.cleaner._worker = RefusingWorker(world)
    for n in range(1, 4):
        world.put(ROUND, VIEWS)
        world.close_segment(VIEWS)
        world.clean(1_000)
        assert n - 0.9 < world.cleaned.due_seconds() < n + 0.1
    world.delete()
    world.settle(1_000)
    assert world.cleaned.due_seconds() == 0


class DiskWithoutRoomForSwaps(Disk):
    """One on which a cleaned segment does not get its next name."""

    def rename(self, old: str, new: str) -> None:
        if new.endswith(f"{Suffix.LOG}{FileState.SWAP}"):
            raise DiskFull(new)
        super().rename(old, new)


def test_a_swap_that_is_given_up_leaves_no_file_open(tmp_path: Path) -> None:
    world = CleaningWorld(files=DiskWithoutRoomForSwaps(), path=str(tmp_path))
    world.put(ROUND)
    world.close_segment()
    world.cleaner.start()
    opened = []
    for count in (1, 10):
        world.tasks.run_until(lambda count=count: world.cleaned.abandoned_passes == count, 10_000)
        opened.append(len(os.listdir("/proc/self/fd")))
    assert world.cleaned.abandoned_passes == 10
    assert opened[0] == opened[1]
    assert not [name for name in world.names() if name.endswith((".cleaned", ".swap"))]


def test_a_swap_that_is_given_up_leaves_nothing_for_a_start_to_complete() -> None:
    """Without a descriptor left to list the directory; the log may be another by that start."""
    world = dirty()
    log = world.log()
    renamed: list[Call] = []

    def lacks_descriptors(call: Call) -> bool:
        if call.name == "rename" and call.path.endswith(f"{Suffix.LOG}{FileState.SWAP}"):
            renamed.append(call)
        return bool(renamed) and call.name in ("open", "list", "sync_directory")

    world.disk.fail(errno.EMFILE, when=lacks_descriptors)
    world.cleaner.start()
    world.tasks.run_until(lambda: world.cleaned.abandoned_passes == 1, 1_000)
    world.disk.heal()
    world.cleaner.stop()
    world.truncate(log, 3)
    world.put([(A, b"6")])
    world.kill()
    assert pairs_in(world.open().logs[CLICKS]) == [(0, A, b"6")]


def test_a_log_that_cannot_be_looked_at_for_lack_of_descriptors_is_cleaned_later() -> None:
    world = dirty(max_compaction_lag_ms=1)
    world.stop()
    world.start_cleaner()
    world.disk.fail(
        errno.EMFILE, when=lambda call: call.name == "open" and call.path.endswith(Suffix.LOG)
    )
    world.clean(1_000)
    assert world.cleaned.passes == 0
    world.disk.heal()
    world.settle(1_000)
    assert pairs_in(world.log()) == LEFT


def test_nothing_is_cleaned_whose_producer_snapshot_is_not_on_the_disk() -> None:
    """A truncation to its end would read the producers from what is left of it."""
    world = CleaningWorld(topic=replace(SETTINGS, min_cleanable_dirty_ratio=0.0))
    world.put([(A, b"1")], producer_id=9, producer_epoch=0, base_sequence=0)
    log = world.put([(A, b"2")])
    world.flush(log)
    world.disk.fail(
        errno.ENOSPC,
        when=lambda call: call.name == "create" and call.path.endswith(f"{Suffix.SNAPSHOT}.tmp"),
    )
    log.roll(world.clock.now_ms())
    world.put([(A, b"3")], producer_id=9, producer_epoch=0, base_sequence=1)
    world.high_watermarks[CLICKS] = 2
    world.clean()
    world.disk.heal()
    assert len(pairs_in(log)) == 3
    world.truncate(log, 2)
    producer = log.producers.producer(9)
    assert producer is not None
    assert producer.last_sequence == 0
    world.flush(log)
    world.settle()
    assert pairs_in(log) == [(1, A, b"2")]


class CutOffWorker(ThreadWorker):
    """One whose last report comes when a truncation of what was read before was just called off."""

    def __init__(self, world: CleaningWorld) -> None:
        super().__init__(world.files, world.clock, world.tasks)
        self._world = world
        self.recovery_points: list[int] = []

    def ask(self, request: Request, on_report: Callable[[Report], None]) -> None:
        log = self._world.log()
        is_last = isinstance(request, Rewrite) and request.sources[-1].base_offset > 0
        if not is_last or self.recovery_points:
            super().ask(request, on_report)
            return

        def called_off(_: BaseException | None) -> None:
            self.recovery_points.append(log.recovery_point)
            on_report(Report(seen_records=1, kept_records=1))

        answers = [False, True, True]  # it is wanted until the files are about to be cut
        self._world.directory.trimmer.truncate(log, 0, called_off, answers.pop)


def test_a_truncation_that_is_called_off_behind_a_pass_ends_that_pass_alone() -> None:
    """It has lowered the recovery point, above which nothing may count as clean."""
    world = CleaningWorld()
    world.cleaner._worker = worker = CutOffWorker(world)
    for key in (b"a", b"b"):
        world.put([(key, bytes(250))])
        world.close_segment()
    world.clean(2_000)
    assert worker.recovery_points == [0]
    log = world.log()
    assert (log.first_dirty_offset, log.recovery_point, world.cleaned.passes) == (2, 2, 1)
    assert world.failures == []


# A swap that waits for room


def no_room_to_retire(call: Call) -> bool:
    return call.name == "rename" and call.path.endswith(f"{Suffix.LOG}{FileState.DELETED}")


def no_room_to_name(call: Call) -> bool:
    return call.name == "rename" and call.path.endswith(Suffix.LOG)


def waiting(when: Callable[[Call], bool]) -> CleaningWorld:
    """A world whose log has a record behind what was cleaned, which lacks room to get its name."""
    world = dirty()
    world.put([(A, b"6")])
    world.disk.fail(errno.ENOSPC, when=when)
    world.cleaner.start()
    log = world.log()
    assert world.tasks.run_until(lambda: log.is_swapping and not log.is_busy, 1_000)
    return world


@pytest.fixture(params=[no_room_to_retire, no_room_to_name])
def swap_waits(request: pytest.FixtureRequest) -> CleaningWorld:
    return waiting(request.param)


LEFT_AND_MORE = [*LEFT, (5, A, b"6")]


def check_ends(world: CleaningWorld) -> None:
    """The swap ends once there is room, and leaves nothing behind."""
    world.disk.heal()
    world.settle(5_000)
    assert pairs_in(world.log()) == LEFT_AND_MORE
    assert not [name for name in world.names() if name.endswith((".cleaned", ".swap"))]
    assert world.failures == []


def test_a_log_whose_swap_waits_is_flushed(swap_waits: CleaningWorld) -> None:
    world, log = swap_waits, swap_waits.log()
    for _ in range(3):
        world.flush(log)
        assert log.recovery_point == log.end_offset == 6
        world.settle(1_100)
    assert log.is_swapping
    check_ends(world)


def test_a_log_whose_swap_waits_is_looked_up_by_time(swap_waits: CleaningWorld) -> None:
    log = swap_waits.log()
    found = find_by_timestamp(log, 0)
    assert found is not None
    assert found.offset == LEFT[0][0]
    newest = run_steps(finding_newest(log))
    assert newest is not None
    assert newest.offset == 5


def test_a_start_completes_a_swap_that_waited_though_its_index_was_rebuilt_meanwhile(
    swap_waits: CleaningWorld,
) -> None:
    world, log = swap_waits, swap_waits.log()
    log.rebuild_indexes(log.segments[0])
    world.kill()
    world.open()
    check_ends(world)


def test_a_log_is_looked_up_by_time_at_every_step_of_a_swap() -> None:
    world = dirty()
    log, found = world.log(), []

    def looks_up(call: Call) -> bool:
        if call.name in ("rename", "sync_directory", "remove") and log.is_swapping:
            world.disk.heal()  # so that the look-up's own calls are let alone
            found.append((find_by_timestamp(log, 0), run_steps(finding_newest(log))))
            world.disk.fail(when=looks_up)
        return False

    world.disk.fail(when=looks_up)
    world.clean()
    assert len(found) > 10
    assert {by_time and by_time.offset for by_time, _ in found} == {0, LEFT[0][0]}
    assert all(newest is not None for _, newest in found)


@pytest.mark.parametrize("refused", range(1, 5))
def test_a_swap_that_waited_leaves_no_file_behind_however_far_it_had_come(refused: int) -> None:
    """What it retired before it lacked room is unlinked, too: the disk is full."""
    world = CleaningWorld()
    for number in range(6):  # small segments, which become one
        world.put([(A, b"%d" % number)])
        world.close_segment()
    world.disk.fail(errno.ENOSPC, when=no_room_to_retire, after_calls=refused, forever=False)
    world.clean(5_000)
    world.settle(2 * world.log().settings.file_delete_delay_ms)
    assert pairs_in(world.log()) == [(5, A, b"5")]
    assert not [name for name in world.names() if name.endswith((".deleted", ".swap"))]


def test_a_stop_is_clean_though_a_swap_waits(swap_waits: CleaningWorld) -> None:
    world = swap_waits
    world.cleaner.stop()
    world.stop()
    world.lose_power()
    assert world.open().is_clean
    check_ends(world)


def test_a_start_completes_a_swap_that_waited_when_the_power_went(
    swap_waits: CleaningWorld,
) -> None:
    world = swap_waits
    world.flush(world.log())
    world.lose_power()
    world.open()
    check_ends(world)


def test_a_log_whose_swap_waits_is_deleted_and_the_others_are_cleaned(
    swap_waits: CleaningWorld,
) -> None:
    world = swap_waits
    world.delete()
    world.disk.heal()
    world.put(ROUND, VIEWS)
    world.close_segment(VIEWS)
    world.settle(5_000)
    assert pairs_in(world.log(VIEWS)) == LEFT
    assert (CLICKS in world.directory.logs, world.failures) == (False, [])


@pytest.mark.parametrize("offset", [0, 3, 5])
def test_a_truncation_of_a_log_whose_swap_waits_finds_no_room_either(
    swap_waits: CleaningWorld, offset: int
) -> None:
    world, log = swap_waits, swap_waits.log()
    with pytest.raises(DiskFull):
        world.truncate(log, offset)
    assert (log.end_offset, log.is_truncating) == (6, False)
    world.disk.heal()
    world.settle(5_000)
    world.truncate(log, offset)
    assert pairs_in(log) == (LEFT if offset == 5 else [])


def test_retention_of_a_log_whose_swap_waits_is_done_once_there_is_room(
    swap_waits: CleaningWorld,
) -> None:
    world, log = swap_waits, swap_waits.log()
    world.delete_records(log, 5)
    segments = list(log.segments)
    assert world.directory.trimmer.retain(lambda log: log.end_offset) == 0
    assert (log.start_offset, log.segments) == (5, segments)
    world.disk.heal()
    world.settle(5_000)
    assert world.directory.trimmer.retain(lambda log: log.end_offset) == 1
    world.settle()
    assert pairs_in(log) == [(5, A, b"6")]


def test_a_log_whose_swap_waits_does_not_begin_elsewhere(swap_waits: CleaningWorld) -> None:
    world, log = swap_waits, swap_waits.log()
    world.delete_records(log, 6)
    with pytest.raises(DiskFull):
        world.wait(lambda done: world.directory.trimmer.truncate_fully(log, 9, done))
    world.disk.heal()
    world.settle(5_000)
    world.wait(lambda done: world.directory.trimmer.truncate_fully(log, 9, done))
    assert (log.start_offset, log.end_offset) == (9, 9)
    world.kill()
    log = world.open().logs[CLICKS]
    assert (log.start_offset, pairs_in(log)) == (9, [])


@pytest.mark.parametrize(("count", "epoch"), [(1, 0), (9, 0), (1, 1)])
def test_a_last_batch_outlives_its_records_though_later_ones_are_cut_off(
    count: int, epoch: int
) -> None:
    """As another log may be copied from this one, without its snapshots."""
    world = CleaningWorld(topic=replace(SETTINGS, min_cleanable_dirty_ratio=0.0))
    world.put([(A, b"1")], producer_id=9, producer_epoch=0, base_sequence=0)
    world.put([(A, b"2")])
    world.close_segment()
    for number in range(count):
        sequence = number + 1 - epoch
        world.put([(A, b"3")], producer_id=9, producer_epoch=epoch, base_sequence=sequence)
    world.flush(world.log())
    world.high_watermarks[CLICKS] = 2
    world.clean()
    assert world.cleaned.passes == 1
    world.truncate(world.log(), 2)
    for name in world.names():
        if name.endswith(".snapshot"):
            world.files.remove(f"{world.path}/{CLICKS}/{name}")
    world.kill()
    log = world.open().logs[CLICKS]
    assert pairs_in(log) == [(1, A, b"2")]
    producer = log.producers.producer(9)
    assert producer is not None
    assert (producer.epoch, producer.last_sequence) == (0, 0)


@pytest.mark.parametrize("seed", first_of(range(20), 6))
def test_a_cleaned_log_keeps_the_last_record_of_each_key_through_power_losses(seed: int) -> None:
    run(seed, 150)


def test_the_histories_do_clean_and_lose_power() -> None:
    histories = [run(seed, 200) for seed in (1001, 1002, 1003)]
    assert sum(each.passes for each in histories) > 5
    assert sum(each.removed for each in histories) > 50
    assert sum(each.crashes for each in histories) > 5


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_500_histories_keep_the_last_record_of_each_key() -> None:
    for seed in range(5000, 5500):
        run(seed, 250)
