"""Files that are made late, few or not at all, and a fault at each of a script's disk calls."""

from __future__ import annotations

import errno
import os
import random
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from storage_life import Life, sweep
from storage_world import (
    CLICKS,
    TOPIC_ID,
    VIEWS,
    World,
    append,
    append_all,
    batch_of,
    expected_lines,
    lines,
    numbered,
)

from kdist.errors import DiskFailed, DiskFull, Error, OutOfDescriptors
from kdist.model import TopicPartition
from kdist.runtime.disk import Disk, DiskFile
from kdist.storage import names
from kdist.storage.flushing import SYNC_FILESYSTEM_FROM
from kdist.storage.log import Log
from kdist.storage.names import LEADER_EPOCHS, RECOVERY_POINTS
from kdist.storage.producers import ProducerStates
from kdist.testing.simulated_disk import PowerLoss
from tests.examples import first_of
from tests.refusals import refused


def check_the_next(world: World, log: Log) -> None:
    """One more append is confirmed, and then the process ends."""
    end = append(world, log, 3).end_offset
    world.kill()
    assert lines(world.open().logs[CLICKS]) == expected_lines(end)


SEGMENTS = 50


class CountingDisk(Disk):
    """Keeps the largest number of descriptors that this process had open."""

    most = 0

    def open(self, path: str) -> DiskFile:
        file = super().open(path)
        self.most = max(self.most, len(os.listdir("/proc/self/fd")))
        return file


def most_opened(tmp_path: Path, *, is_stopped: bool, lost: str = "") -> int:
    """How many files are open at most when a log without its files of this name is opened."""
    disk = CountingDisk()
    world = World(disk, str(tmp_path))
    log = world.log(segment_bytes=100, index_interval_bytes=0)
    for _ in range(SEGMENTS):
        world.clock.advance_ms(1)
        append(world, log, 3)
    assert len(log.segments) == SEGMENTS
    if is_stopped:
        world.stop()
    else:
        world.directory._lock.release()
    log.close()
    for path in tmp_path.rglob(lost) if lost else ():
        path.unlink()
    before, disk.most = len(os.listdir("/proc/self/fd")), 0
    world.open().trimmer.retain(lambda log: log.end_offset)
    return disk.most - before


def partitions(world: World) -> list[str]:
    """The partitions that have a directory on the disk."""
    return [name for name in world.disk.list("/d01") if name.startswith(("clicks", "views"))]


def fail_at(n: int, *, forever: bool) -> bool:
    """Run the script with a fault at call `n`; returns whether it had that many."""
    world = World(seed=n)
    life, before = Life(world), len(world.disk.trace)
    world.disk.fail(after_calls=n, forever=forever)
    try:
        life.run()
    except DiskFailed:
        pass
    else:
        assert len(world.disk.trace) - before <= n, "the fault went unnoticed"
        return False
    world.disk.heal()
    life.check_after_the_crash()
    return True


def crash_at(n: int, seed: int) -> bool:
    """Run the script until a power loss at call `n`; returns whether it had that many."""
    world = World(seed=seed)
    life = Life(world)
    world.disk.crash_at(n)
    try:
        life.run()
    except PowerLoss:
        life.check_after_the_crash()
        return True
    return False


@pytest.mark.parametrize("is_reserved", [False, True])
@pytest.mark.parametrize("call", ["preallocate", "free_bytes"])
def test_a_failed_preallocation_leaves_no_hole(call: str, is_reserved: bool) -> None:
    world = World(preallocation_step_bytes=1000)
    log = world.log()
    append(world, log, 3)
    world.disk.fail(when=lambda each: each.name == call, forever=False)
    add = log.prepare_as_leader if is_reserved else log.append_as_leader
    with pytest.raises(DiskFailed):
        add([batch_of(numbered(3, 9000))], 0, world.clock.now_ms())
    assert not log.is_appending
    check_the_next(world, log)


@pytest.mark.parametrize("count", [1, 3])
def test_a_failed_index_write_lets_no_offset_be_assigned_twice(count: int) -> None:
    world = World()
    log = world.log(index_interval_bytes=0)
    world.disk.fail(when=lambda call: call.name == "write" and "index" in call.path, forever=False)
    with pytest.raises(DiskFailed):  # noqa: PT012 - at which one is what the test is about
        while True:
            now_ms = world.clock.now_ms()
            world.clock.advance_ms(count)
            batches = [
                batch_of(numbered(log.end_offset + number, 1), timestamp=now_ms + number)
                for number in range(count)
            ]
            append_all(log, batches, 0, now_ms)
    check_the_next(world, log)


def test_a_roll_without_memory_for_its_snapshot_leaves_no_hole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    monkeypatch.setattr(ProducerStates, "copy", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        log.roll(world.clock.now_ms())
    monkeypatch.undo()
    check_the_next(world, log)


def test_a_filesystem_sync_after_a_failed_one_confirms_nothing() -> None:
    """The failed sync reported lost pages, of whatever log; the next does not report them again."""
    world = World()
    logs = [
        world.log(TopicPartition("clicks", number)) for number in range(2 * SYNC_FILESYSTEM_FROM)
    ]
    heard: list[list[BaseException | None]] = [[], []]
    for log in logs:
        append(world, log, 3)
    world.disk.fail(when=lambda call: call.name == "sync_filesystem", forever=False)
    for turn in (0, 1):
        for log in logs[turn::2]:
            world.directory.flusher.request(log, heard[turn].append)
        world.settle()
    assert [type(error) for error in heard[0]] == [DiskFailed] * SYNC_FILESYSTEM_FROM
    assert heard[1] == []
    assert [log.recovery_point for log in logs] == [0] * len(logs)


def test_a_start_and_the_first_retention_open_few_files_at_a_time(tmp_path: Path) -> None:
    cases = {
        "stopped": {"is_stopped": True},
        "killed": {"is_stopped": False},
        "without recovery points": {"is_stopped": False, "lost": RECOVERY_POINTS},
        "without producers": {"is_stopped": True, "lost": "*.snapshot"},
        "without epochs": {"is_stopped": True, "lost": LEADER_EPOCHS},
        "without indexes": {"is_stopped": True, "lost": "*index"},
    }
    for name, case in cases.items():
        (tmp_path / name).mkdir()
        assert most_opened(tmp_path / name, **case) < 12, name


def test_the_files_of_a_new_log_are_created_shortly_afterwards() -> None:
    world = World()
    log = world.log()
    world.log(VIEWS)
    assert partitions(world) == []
    world.settle(1_500)
    assert partitions(world) == ["clicks-0", "views-3"]
    assert world.names() == [
        f"{0:020}.index",
        f"{0:020}.log",
        f"{0:020}.timeindex",
        names.PARTITION_METADATA,
    ]
    append(world, log, 3)
    assert lines(log) == expected_lines(3)


def test_the_first_append_creates_them_at_once() -> None:
    world = World()
    log = world.log()
    world.log(VIEWS)
    append(world, log, 3)
    assert partitions(world) == ["clicks-0"]
    assert lines(log) == expected_lines(3)
    world.settle(1_500)
    assert partitions(world) == ["clicks-0", "views-3"]
    assert lines(log) == expected_lines(3)


def test_a_flush_creates_them_too() -> None:
    world = World()
    world.flush(world.log())
    assert partitions(world) == ["clicks-0"]
    world.lose_power()
    assert CLICKS in world.open().logs


def test_a_log_deleted_before_that_was_never_on_the_disk() -> None:
    world = World()
    world.log()
    world.delete()
    assert partitions(world) == []
    world.settle(1_500)
    assert partitions(world) == []
    append(world, world.log(), 3)
    assert lines(world.log()) == expected_lines(3)


def test_no_checkpoint_names_a_log_without_files() -> None:
    world = World()
    append(world, world.log(), 3)
    world.log(VIEWS)
    world.wait(world.directory.saver.request)
    world.delete(VIEWS)
    assert b"views" not in world.disk.read(f"/d01/{names.RECOVERY_POINTS}")
    world.directory.create(VIEWS, TOPIC_ID, world.topic)


@pytest.mark.parametrize("call", ["make_directory", "create", "rename"])
def test_on_a_full_disk_the_files_are_created_with_the_first_records(call: str) -> None:
    world = World()
    log = world.log()
    world.disk.fail(errno.ENOSPC, when=lambda each: each.name == call)
    world.settle(1_500)
    with pytest.raises(DiskFull):
        append(world, log, 3)
    assert partitions(world) == []
    world.disk.heal()
    append(world, log, 3)
    assert lines(log) == expected_lines(3)
    assert world.failures == []


def test_without_descriptors_the_files_are_created_or_removed_later() -> None:
    world = World()
    log = world.log()
    world.disk.fail(errno.EMFILE, when=lambda each: each.name in ("create", "remove_tree"))
    world.settle(1_500)
    with pytest.raises(OutOfDescriptors):
        append(world, log, 3)
    assert partitions(world) == ["clicks-0"]
    world.disk.heal()
    append(world, log, 3)
    assert lines(log) == expected_lines(3)
    assert world.failures == []


def test_a_log_that_cannot_be_removed_completely_is_deleted_at_the_next_attempt() -> None:
    world = World()
    log = world.log()
    world.disk.fail(errno.EMFILE, when=lambda each: each.name in ("create", "remove_tree"))
    with pytest.raises(OutOfDescriptors):
        append(world, log, 3)
    with pytest.raises(OutOfDescriptors):
        world.delete()
    world.disk.heal()
    world.delete()
    assert partitions(world) == []
    append(world, world.log(), 3)
    assert lines(world.log()) == expected_lines(3)
    assert world.failures == []


def test_no_log_is_created_where_a_file_has_its_name() -> None:
    world = World()
    append(world, world.log(VIEWS), 3)
    world.disk.create("/d01/clicks-0").close()
    with refused(Error.KAFKA_STORAGE_ERROR):
        world.log()
    assert CLICKS not in world.directory.logs
    world.disk.remove("/d01/clicks-0")
    append(world, world.log(), 3)


def test_a_disk_failure_while_files_are_created_is_reported() -> None:
    world = World()
    world.log()
    world.disk.fail(errno.EIO, when=lambda each: each.name == "create")
    world.settle(1_500)
    assert [type(failure) for failure in world.failures] == [DiskFailed]


@pytest.mark.slow
@pytest.mark.parametrize("forever", [False, True])
def test_a_disk_failure_at_any_call_is_noticed_and_loses_nothing_confirmed(
    forever: bool,
) -> None:
    sweep(partial(fail_at, forever=forever), f"fail_at(%d, {forever=})", at_least=300)


@pytest.mark.slow
def test_a_power_loss_at_any_call_loses_nothing_confirmed() -> None:
    sweep(partial(crash_at, seed=0), "crash_at(%d, seed=0)", 1, at_least=300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_of(range(1, 20), 4, others=pytest.mark.stress))
def test_a_power_loss_at_any_call_loses_nothing_confirmed_whatever_survives(seed: int) -> None:
    sweep(partial(crash_at, seed=seed), f"crash_at(%d, {seed=})", 1, at_least=300)


def test_recovery_interrupted_by_a_power_loss_can_be_repeated() -> None:
    """Recovery itself is interrupted at each of its calls."""
    n, is_done = 0, False
    while not is_done:
        n += 1
        world = World(seed=n)
        log = world.log(segment_bytes=300, index_interval_bytes=0)
        for _ in range(12):
            append(world, log, 3)
        world.flush(log)
        append(world, log, 9)
        world.lose_power()
        world.disk.crash_at(n)
        try:
            world.open()
        except PowerLoss:
            world.files = world.disk.power_on(random.Random(n))
        else:
            is_done = True
            world.lose_power()
        world.open()
        assert lines(world.directory.logs[CLICKS]) in (expected_lines(36), expected_lines(45))
    assert n > 20
