"""A replica that begins anew at an offset beyond its end: its leader has deleted what follows."""

from __future__ import annotations

import pytest
from storage_world import CLICKS, World, append, expected_lines, lines

from kdist.errors import ApiError, Error
from kdist.runtime.simulated_disk import PowerLoss
from kdist.storage.log import Log


def grown(world: World, count: int) -> Log:
    """A log of batches of five records, in segments of a few each, flushed."""
    log = world.log(segment_bytes=700, index_interval_bytes=0)
    for _ in range(count):
        append(world, log, 5)
    if count:
        world.flush(log)
    return log


def begin_anew(world: World, log: Log, offset: int) -> None:
    world.wait(lambda done: world.directory.begin_anew(log, offset, done))


@pytest.mark.parametrize("batches", [0, 1, 12])
def test_the_log_is_empty_at_the_offset_and_goes_on_from_there(batches: int) -> None:
    world = World()
    log = grown(world, batches)
    begin_anew(world, log, 100)
    assert (log.start_offset, log.end_offset, log.reserved_offset) == (100, 100, 100)
    assert log.epochs.entries == []
    append(world, log, 5)
    assert lines(log) == expected_lines(105, 100)
    log = world.restart().logs[CLICKS]
    assert lines(log) == expected_lines(105, 100)


def test_after_a_power_loss_the_log_has_its_first_records_or_none() -> None:
    found = set()
    for number in range(1, 60):
        world = World(seed=number)
        log = grown(world, 12)
        world.disk.crash_at(number)
        try:
            begin_anew(world, log, 100)
        except PowerLoss:
            world.files = world.disk.power_on()
        log = world.open().logs[CLICKS]
        found.add((log.start_offset, log.end_offset))
        assert lines(log) == expected_lines(60)[: len(lines(log))]
    assert (100, 100) in found
    assert (0, 60) in found


def test_a_truncation_that_waited_is_not_begun_once_it_is_not_wanted() -> None:
    world = World()
    log = grown(world, 12)
    append(world, log, 5)
    heard: list[BaseException | None] = []
    world.directory.flusher.request(log)
    world.tasks.run_for_ms(0)
    assert log.is_busy
    world.directory.truncate(log, 20, heard.append, lambda: False)
    world.settle()
    (error,) = heard
    assert isinstance(error, ApiError)
    assert error.error is Error.NOT_LEADER_OR_FOLLOWER
    assert log.end_offset == 65
