"""The files of new logs: when they are made, and what becomes of a log that has none."""

from __future__ import annotations

import errno

import pytest
from storage_world import CLICKS, TOPIC_ID, VIEWS, World, append, expected_lines, lines

from kdist.errors import ApiError, DiskFailed, DiskFull, OutOfDescriptors
from kdist.storage import names


def partitions(world: World) -> list[str]:
    """What there is of partitions in the log directory."""
    return [name for name in world.disk.list("/d01") if name.startswith(("clicks", "views"))]


def test_a_new_log_has_its_files_a_moment_later() -> None:
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


def test_the_first_append_does_not_wait_for_that() -> None:
    world = World()
    log = world.log()
    world.log(VIEWS)
    append(world, log, 3)
    assert partitions(world) == ["clicks-0"]
    assert lines(log) == expected_lines(3)
    world.settle(1_500)
    assert partitions(world) == ["clicks-0", "views-3"]
    assert lines(log) == expected_lines(3)


def test_a_flush_makes_them_too() -> None:
    world = World()
    world.flush(world.log())
    assert partitions(world) == ["clicks-0"]
    world.lose_power()
    assert CLICKS in world.open().logs


def test_a_log_that_is_deleted_before_was_never_on_the_disk() -> None:
    world = World()
    world.log()
    world.delete()
    assert partitions(world) == []
    world.settle(1_500)
    assert partitions(world) == []
    append(world, world.log(), 3)
    assert lines(world.log()) == expected_lines(3)


def test_no_checkpoint_tells_of_a_log_without_files() -> None:
    world = World()
    append(world, world.log(), 3)
    world.log(VIEWS)
    world.wait(world.directory.saver.request)
    world.delete(VIEWS)
    assert b"views" not in world.disk.read(f"/d01/{names.RECOVERY_POINTS}")
    world.directory.create(VIEWS, TOPIC_ID, world.topic)


@pytest.mark.parametrize("call", ["make_directory", "create", "rename"])
def test_files_for_which_there_is_no_room_are_made_with_the_first_records(call: str) -> None:
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


def test_files_that_no_descriptor_is_left_to_make_or_to_remove_are_made_later() -> None:
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


def test_a_log_of_which_something_cannot_be_removed_is_deleted_by_the_next_try() -> None:
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


def test_a_log_is_not_made_where_somebody_has_put_a_file() -> None:
    world = World()
    append(world, world.log(VIEWS), 3)
    world.disk.create("/d01/clicks-0").close()
    with pytest.raises(ApiError, match="/d01/clicks-0 is there, and is no log"):
        world.log()
    assert CLICKS not in world.directory.logs
    world.disk.remove("/d01/clicks-0")
    append(world, world.log(), 3)


def test_a_disk_that_fails_meanwhile_is_reported() -> None:
    world = World()
    world.log()
    world.disk.fail(errno.EIO, when=lambda each: each.name == "create")
    world.settle(1_500)
    assert [type(failure) for failure in world.failures] == [DiskFailed]
