"""What is appended between a failure of the disk and the end of its broker: it is there afterwards.

The one ends the other, but not at once, and what comes in between may be answered.
"""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from storage_world import CLICKS, World, append, batch_of, expected_lines, lines, numbered

from kdist.errors import DiskFailed
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
