"""Records that are acknowledged between a disk failure and the end of the broker are not lost.

The failure ends the broker, but not at once: appends in between may be acknowledged.
"""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from storage_world import (
    CLICKS,
    World,
    append,
    append_all,
    batch_of,
    expected_lines,
    lines,
    numbered,
)

from kdist.errors import DiskFailed
from kdist.model import TopicPartition
from kdist.storage.flushing import SYNC_FILESYSTEM_FROM
from kdist.storage.log import Log
from kdist.storage.producers import ProducerStates


def check_the_next(world: World, log: Log) -> None:
    """One more append is confirmed, and then the process ends."""
    end = append(world, log, 3).end_offset
    world.kill()
    assert lines(world.open().logs[CLICKS]) == expected_lines(end)


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
