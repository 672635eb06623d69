"""What is appended between a failure of the disk and the end of its broker: it is there afterwards.

The one ends the other, but not at once, and what comes in between may be answered.
"""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from storage_world import CLICKS, World, append, batch_of, expected_lines, lines, numbered

from kdist.errors import DiskFailed
from kdist.model import TopicPartition
from kdist.storage.flushing import SYNC_FILESYSTEM_FROM
from kdist.storage.group import append_group
from kdist.storage.log import Log


def check_the_next(world: World, log: Log) -> None:
    """One more append is confirmed, and then the process ends."""
    end = append(world, log, 3).end_offset
    world.kill()
    assert lines(world.open().logs[CLICKS]) == expected_lines(end)


@pytest.mark.parametrize("is_reserved", [False, True])
@pytest.mark.parametrize("call", ["preallocate", "free_bytes"])
def test_disk_space_that_cannot_be_reserved_leaves_no_hole(call: str, is_reserved: bool) -> None:
    world = World(preallocation_step_bytes=1000)
    log = world.log()
    append(world, log, 3)
    world.disk.fail(when=lambda each: each.name == call, forever=False)
    add = log.reserve if is_reserved else log.append
    with pytest.raises(DiskFailed):
        add([batch_of(numbered(3, 9000))], 0, world.clock.now_ms())
    assert not log.is_appending
    check_the_next(world, log)


@pytest.mark.parametrize("count", [1, 3])
def test_an_index_that_cannot_be_written_leaves_no_offset_to_be_given_twice(count: int) -> None:
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
            append_group(log, batches, 0, now_ms)
    check_the_next(world, log)


def test_a_roll_that_finds_no_memory_for_its_snapshot_leaves_no_hole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    monkeypatch.setattr("kdist.storage.log.encode_snapshot", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        log.roll(world.clock.now_ms())
    monkeypatch.undo()
    check_the_next(world, log)


def test_a_sync_of_the_filesystem_after_one_that_failed_confirms_nothing() -> None:
    """It was told that pages of any log were lost, and is not told again."""
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
