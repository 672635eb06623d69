"""A replica that begins anew at an offset beyond its end: its leader has deleted what follows."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest
from storage_world import (
    CLICKS,
    TOPIC_ID,
    Line,
    World,
    append,
    batch_of,
    expected_lines,
    lines,
    numbered,
)

from kdist.errors import ApiError, DiskFailed, DiskFull, Error
from kdist.storage.directory import Schedule
from kdist.storage.log import Log
from kdist.storage.meta import load_partition_metadata
from kdist.storage.names import PARTITION_METADATA, Suffix
from kdist.testing.simulated_disk import PowerLoss
from kdist.testing.simulated_faults import Call


def grown(world: World, count: int) -> Log:
    """A log of batches of five records, in segments of a few each, flushed."""
    log = world.log(segment_bytes=700, index_interval_bytes=0)
    for _ in range(count):
        append(world, log, 5)
    if count:
        world.flush(log)
    return log


def begin_anew(world: World, log: Log, offset: int) -> None:
    world.wait(lambda done: world.directory.trimmer.truncate_fully(log, offset, done))


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


def emptied(world: World, count: int) -> Log:
    """A log whose records are deleted, though none of its segments could be removed so far."""
    log = grown(world, count)
    if count:
        world.disk.fail(errno.ENOSPC, when=lambda call: call.path.endswith(".deleted"))
        world.delete_records(log, log.end_offset)
        world.disk.heal()
        assert len(log.segments) > 2
    return log


def _changes_names(call: Call) -> bool:
    return call.name in {"create", "rename", "open"}


def live_lines(world: World, start: int) -> list[Line]:
    """The records from `start` on that a power loss has left."""
    log = world.open().logs.get(CLICKS)
    return [line for line in lines(log) if line[0] >= start] if log else []


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
@pytest.mark.parametrize("count", [0, 12])
@pytest.mark.parametrize("is_tried_again", [False, True])
def test_a_log_whose_disk_refuses_any_one_call_begins_anew_whole_or_not_at_all(
    count: int, error: int, *, is_tried_again: bool
) -> None:
    refused = 0
    for number in range(20):
        world = World(seed=number)
        log = emptied(world, count)
        start, epochs = log.start_offset, log.epochs.entries
        world.disk.fail(error, when=_changes_names, after_calls=number, forever=False)
        try:
            log.truncate_fully(100, world.clock.now_ms())
            expected = 100
        except DiskFull:
            refused += 1
            assert (log.start_offset, log.end_offset, log.epochs.entries) == (start, start, epochs)
            assert not world.files.exists(world.path_of(100, Suffix.LOG))
            expected = start
        world.disk.heal()
        if is_tried_again and expected < 100:
            expected = 100
            begin_anew(world, log, 100)
        assert (log.start_offset, log.end_offset) == (expected, expected)
        append(world, log, 5)
        world.flush(log)
        world.lose_power()
        assert live_lines(world, start) == expected_lines(expected + 5, expected)
    assert 0 < refused < 20


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("count", [0, 12])
def test_a_power_loss_at_any_call_takes_no_record_flushed_since(
    count: int, *, is_refused: bool
) -> None:
    for number in range(1, 70):
        world = World(seed=number)
        log = emptied(world, count)
        start = log.start_offset
        if is_refused:
            path = log.active.path
            world.disk.fail(
                errno.ENOSPC, when=lambda call, path=path: call.path.startswith(f"{path}.")
            )
        world.disk.crash_at(number)
        flushed: list[Line] = []
        try:
            with suppress(DiskFull):
                begin_anew(world, log, 100)
            for _ in range(2):
                end = log.end_offset
                append(world, log, 5)
                world.flush(log)
                flushed += expected_lines(end + 5, end)
        except PowerLoss:
            world.files = world.disk.power_on()
        else:
            world.lose_power()
        assert live_lines(world, start)[: len(flushed)] == flushed


def test_a_refill_from_before_the_offset_that_is_refused_loses_no_record_flushed_since() -> None:
    for seed in range(10):
        world = World(seed=seed)
        log = grown(world, 0)
        begin_anew(world, log, 100)
        world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "rename")
        with pytest.raises(DiskFull):
            log.complete_append(
                log.prepare_as_follower([batch_of(numbered(98, 4), base_offset=98).data], 0, 0), 0
            )
        world.disk.heal()
        append(world, log, 5)
        world.flush(log)
        world.lose_power()
        assert live_lines(world, 0) == expected_lines(105, 100)


def test_a_log_that_can_neither_begin_anew_nor_stay_fails_its_disk() -> None:
    world = World()
    log = grown(world, 1)
    world.truncate(log, 0)
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name in {"rename", "remove"})
    with pytest.raises(DiskFailed):
        log.truncate_fully(100, world.clock.now_ms())


def test_no_checkpoint_tells_of_the_offset_as_flushed_before_it_is() -> None:
    """Else a log that a power loss leaves without its topic's id would count as flushed."""
    found = set()
    for seed in range(40):
        world = World(seed=seed)
        log = world.log()
        log.truncate_fully(100, world.clock.now_ms())
        world.wait(world.directory.saver.request)
        world.lose_power()
        is_there = CLICKS in world.open().logs
        found.add(is_there)
        if is_there:
            path = f"/d01/{CLICKS}/{PARTITION_METADATA}"
            assert load_partition_metadata(world.files, path) == TOPIC_ID
    assert found == {True, False}


def test_a_flush_covers_the_topics_id_after_a_kill() -> None:
    for seed in range(40):
        world = World(seed=seed)
        log = world.log()
        log.truncate_fully(100, world.clock.now_ms())
        world.wait(world.directory.saver.request)
        world.directory._lock.release()  # as the kernel does; the page cache stays
        world.open()
        append(world, world.log(), 5)
        world.flush(world.log())
        world.lose_power()
        assert lines(world.open().logs[CLICKS]) == expected_lines(105, 100)
        path = f"/d01/{CLICKS}/{PARTITION_METADATA}"
        assert load_partition_metadata(world.files, path) == TOPIC_ID


def test_a_flush_that_found_no_room_is_made_up_for_once_it_is_due() -> None:
    world = World()
    log = world.log(flush_ms=1000)
    world.disk.fail(errno.ENOSPC, when=lambda call: call.path.endswith("checkpoint.tmp"))
    with pytest.raises(DiskFull):
        begin_anew(world, log, 100)
    assert (log.end_offset, log.recovery_point) == (100, 0)
    world.disk.heal()
    world.clock.advance_ms(1000)
    Schedule(world.directory, lambda log: log.end_offset).flush_due()
    world.settle()
    assert log.recovery_point == 100


def test_a_log_that_is_deleted_while_it_begins_anew_is_not_flushed_any_more() -> None:
    world = World()
    log = grown(world, 0)
    append(world, log, 5)
    world.truncate(log, 0)
    heard: list[BaseException | None] = []
    world.directory.trimmer.truncate_fully(log, 100, heard.append)
    world.delete()
    world.settle()
    (error,) = heard
    assert isinstance(error, ApiError)
    assert error.error is Error.NOT_LEADER_OR_FOLLOWER
    assert world.failures == []


def test_a_truncation_that_waited_is_not_begun_once_it_is_not_wanted() -> None:
    world = World()
    log = grown(world, 12)
    append(world, log, 5)
    heard: list[BaseException | None] = []
    world.directory.flusher.request(log)
    world.tasks.run_for_ms(0)
    assert log.is_busy
    world.directory.trimmer.truncate(log, 20, heard.append, lambda: False)
    world.settle()
    (error,) = heard
    assert isinstance(error, ApiError)
    assert error.error is Error.NOT_LEADER_OR_FOLLOWER
    assert log.end_offset == 65


def deleted_up_to_42(seed: int) -> tuple[World, Log]:
    world = World(seed=seed)
    log = grown(world, 12)
    world.wait(lambda done: world.directory.trimmer.delete_records(log, 42, done))
    return world, log


@pytest.mark.parametrize("offset", [0, 17, 39, 40, 41])
def test_a_log_that_begins_anew_below_its_start_keeps_from_then_on_what_is_flushed(
    offset: int,
) -> None:
    world, log = deleted_up_to_42(seed=1)
    begin_anew(world, log, offset)
    assert (log.start_offset, log.end_offset) == (offset, offset)
    append(world, log, 5)
    world.flush(log)
    world.lose_power()
    log = world.open().logs[CLICKS]
    assert (log.start_offset, log.end_offset) == (offset, offset + 5)
    assert lines(log) == expected_lines(offset + 5, offset)


@pytest.mark.parametrize("offset", [0, 17, 39, 40, 41])
def test_a_power_loss_while_a_log_begins_anew_below_its_start_has_it_begin_there_or_where_it_did(
    offset: int,
) -> None:
    found = set()
    for number in range(1, 120):
        world, log = deleted_up_to_42(number)
        world.disk.crash_at(number)
        try:
            begin_anew(world, log, offset)
        except PowerLoss:
            world.files = world.disk.power_on()
            log = world.open().logs[CLICKS]
        bounds = (log.start_offset, log.end_offset)
        found.add(bounds)
        assert bounds == (offset, offset) or 42 == bounds[0] <= bounds[1] <= 60
    assert {(offset, offset), (42, 60)} <= found
