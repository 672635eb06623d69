"""The files of new logs: when they are created, and what happens to a log without any."""

from __future__ import annotations

import errno

import pytest
from storage_world import CLICKS, TOPIC_ID, VIEWS, World, append, expected_lines, lines

from kdist.errors import ApiError, DiskFailed, DiskFull, OutOfDescriptors
from kdist.storage import names


def partitions(world: World) -> list[str]:
    """The partitions that have a directory on the disk."""
    return [name for name in world.disk.list("/d01") if name.startswith(("clicks", "views"))]


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
    with pytest.raises(ApiError, match="/d01/clicks-0 is there, and is no log"):
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
