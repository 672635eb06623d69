"""Deleting a partition: while it is read, unlinked by hand, or the disk is full."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from storage_world import CLICKS, World, append, expected_lines, lines

from kdist.errors import DiskFull, Error
from kdist.storage.background import Background
from kdist.storage.names import LOG_START_OFFSETS, RECOVERY_POINTS, Suffix
from kdist.storage.reading import read
from tests.refusals import refused
from tests.stepped_process import SteppedProcess


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_slice_released_after_a_deletion_leaves_the_recreated_partition_alone(
    is_made_anew: bool,
) -> None:
    """The release closes its segment, which had index entries that were not written yet."""
    world = World()
    log = world.log(index_interval_bytes=0)
    for _ in range(5):
        append(world, log)
    piece = read(log, 0, 1 << 20)
    assert piece is not None
    world.delete()
    if is_made_anew:
        append(world, world.log(), 3)
    piece.release()
    if is_made_anew:
        assert world.disk.size(world.path_of(0, Suffix.INDEX)) == 0
        assert world.disk.size(world.path_of(0, Suffix.TIME_INDEX)) == 0


def test_a_deleted_partition_may_be_unlinked_by_hand() -> None:
    """An operator may, on a full disk, within the minute before the files are unlinked."""
    world = World()
    append(world, world.log(), 3)
    world.delete()
    (name,) = [name for name in world.disk.list("/d01") if name.endswith("-delete")]
    world.disk.remove_tree(f"/d01/{name}")
    world.settle(61_000)
    assert world.failures == []


def test_a_stray_frees_its_name_and_keeps_its_files() -> None:
    world = World()
    append(world, world.log(), 3)
    content = world.disk.read(world.path_of(0, Suffix.LOG))
    world.wait(partial(world.directory.mark_stray, CLICKS))
    assert lines(world.log()) == []
    world.settle(120_000)
    world.restart()
    (name,) = [name for name in world.disk.list("/d01") if name.endswith("-stray")]
    assert world.disk.read(f"/d01/{name}/{0:020d}.log") == content


@pytest.mark.parametrize("is_flushing", [False, True])
def test_a_partition_that_a_full_disk_keeps_from_being_deleted_stays_in_use(
    is_flushing: bool,
) -> None:
    """Renaming a directory may need a block."""
    world = World()
    log = world.log()
    append(world, log, 3)
    if is_flushing:
        world.directory.flusher.request(log)
        world.tasks.run_until(lambda: log.is_busy, 100)
    world.disk.fail(errno.ENOSPC, when=lambda call: call.path.endswith("-delete"), forever=False)
    with pytest.raises(DiskFull):
        world.delete()
    append(world, log, 3)
    assert lines(world.log()) == expected_lines(6)
    world.delete()
    assert CLICKS not in world.directory.logs


class CountedTasks(SteppedProcess):
    """Counts blocking work: in all, and the most that was under way at once."""

    under_way = most = works = 0

    def run_blocking(
        self, work: Callable[[], None], done: Callable[[BaseException | None], None]
    ) -> None:
        def ended(error: BaseException | None) -> None:
            self.under_way -= 1
            done(error)

        self.works += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        super().run_blocking(work, ended)


def retired(count: int) -> tuple[World, CountedTasks, Background]:
    """A world with so many deleted partitions, which wait to be unlinked."""
    world = World()
    tasks = CountedTasks(world.clock, world.rng)
    background = Background(world.directory_context()._replace(tasks=tasks))
    for number in range(count):
        world.disk.make_directory(f"/d01/{number}-delete")
        background.remove_tree(f"/d01/{number}-delete", 1000)
    return world, tasks, background


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.ENOTEMPTY])
def test_files_that_cannot_be_unlinked_stay_until_the_next_start(code: int) -> None:
    """Where an unlink itself takes a block, a broker that ends for it frees none.

    Where somebody has put a directory of root's into the partition's, it ended at each start.
    """
    world = World()
    append(world, world.log(), 3)
    world.delete()
    world.disk.fail(code, when=lambda call: call.name == "remove_tree")
    world.settle(61_000)
    assert world.failures == []
    world.disk.heal()
    world.restart()
    world.settle(1000)
    assert not [name for name in world.disk.list("/d01") if name.endswith("-delete")]


def test_a_name_is_blocked_while_a_checkpoint_names_the_deleted_partition() -> None:
    """Its old recovery point is on the disk; a recreated log would be trusted up to there."""
    world = World()
    append(world, world.log(), 30)
    world.flush(world.log())
    world.disk.fail(errno.ENOSPC, when=lambda call: LOG_START_OFFSETS in call.path)
    with pytest.raises(DiskFull):
        world.wait(world.directory.saver.request)
    world.disk.heal()
    world.disk.fail(errno.ENOSPC, when=lambda call: RECOVERY_POINTS in call.path)
    with pytest.raises(DiskFull):
        world.delete()
    world.disk.heal()
    with refused(Error.KAFKA_STORAGE_ERROR):
        world.log()
    world.wait(lambda done: world.directory.forget(CLICKS, done))
    append(world, world.log(), 3)
    world.flush(world.log())
    world.lose_power()
    assert lines(world.open().logs[CLICKS]) == expected_lines(3)


def test_a_deletion_that_found_no_room_to_be_durable_is_made_so_before_it_counts() -> None:
    """Without an entry in any checkpoint nothing else would save one."""
    for seed in range(10):
        world = World(seed=seed)
        append(world, world.log(), 3)
        world.flush(world.log())
        world.disk.fail(errno.ENOSPC, when=lambda call: call.path.endswith("checkpoint.tmp"))
        with pytest.raises(DiskFull):
            world.delete()
        forget = partial(world.directory.forget, CLICKS)
        with pytest.raises(DiskFull):
            world.wait(forget)
        world.disk.heal()
        world.wait(forget)
        world.lose_power()
        assert CLICKS not in world.open().logs


def test_a_save_that_began_before_a_partition_was_deleted_does_not_make_that_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends after the directory was renamed, and has synced before; the next finds no room."""
    world = World()
    log = world.log()
    saved: list[Callable[[None], None]] = []
    monkeypatch.setattr(
        world.tasks, "run_blocking", lambda work, done: (work(), saved.append(done))
    )
    world.directory.saver.request()
    monkeypatch.undo()
    append(world, log, 3)
    world.disk.sync_filesystem("/d01")
    heard: list[BaseException | None] = []
    world.disk.fail(errno.ENOSPC, when=lambda call: call.path.endswith(".tmp"))
    world.directory.delete(CLICKS, heard.append)
    saved[0](None)
    world.settle()
    assert [type(error) for error in heard] == [DiskFull]
    world.disk.heal()
    world.wait(partial(world.directory.forget, CLICKS))
    world.disk.is_off = True
    survivors = [world.disk.power_on(Random(seed)).list("/d01") for seed in range(20)]
    assert not [names for names in survivors if str(CLICKS) in names]


def test_removals_take_one_thread_at_a_time() -> None:
    """A topic's thousands of partitions are removed in the same minute, each perhaps slowly."""
    world, tasks, _ = retired(20)
    tasks.run_until_idle()
    assert world.disk.list("/d01") == []
    assert (tasks.works, tasks.most) == (20, 1)


def test_a_stop_waits_for_the_current_removal_only() -> None:
    world, tasks, background = retired(20)
    tasks.run_until(lambda: tasks.works > 4, 2000)
    background.stop()
    tasks.run_until_idle()
    assert tasks.works == 5
    assert len(world.disk.list("/d01")) == 15
    assert world.failures == []
