"""Work at intervals: flushes, checkpoints, retention, closing idle files; and how it stops."""

from __future__ import annotations

import errno

import pytest
from storage_world import CLICKS, VIEWS, World, append, batch_of, expected_lines, lines

from kdist.errors import OutOfDescriptors
from kdist.storage.directory import Schedule
from kdist.storage.log import Log
from kdist.storage.names import HIGH_WATERMARKS, RECOVERY_POINTS


def scheduled(world: World) -> Schedule:
    schedule = Schedule(world.directory, lambda log: log.end_offset)
    schedule.start()
    return schedule


def is_open(log: Log) -> bool:
    return log.active._file is not None


def test_nothing_happens_before_the_first_interval_has_passed() -> None:
    world = World(retention_check_interval_ms=1000)
    log = world.log(retention_ms=1)
    append(world, log, 3)
    scheduled(world)
    world.tasks.run_for_ms(999)
    assert log.start_offset == 0
    world.tasks.run_for_ms(100)
    assert log.start_offset == 3


def test_recovery_points_are_saved_at_their_interval() -> None:
    world = World(flush_offset_checkpoint_interval_ms=5000)
    log = world.log(flush_messages=1)
    scheduled(world)
    append(world, log, 3)
    world.tasks.run_for_ms(4900)
    path = f"/d01/{RECOVERY_POINTS}"
    assert b"clicks 0 3" not in world.disk.read(path)
    world.tasks.run_for_ms(300)
    assert b"clicks 0 3" in world.disk.read(path)


def test_high_watermarks_are_saved_every_five_seconds_and_alone() -> None:
    world = World()
    log = world.log(flush_messages=1)
    world.directory.high_watermarks = lambda: {CLICKS: log.end_offset - 1, VIEWS: 7}
    scheduled(world)
    append(world, log, 3)
    world.tasks.run_for_ms(4900)
    path = f"/d01/{HIGH_WATERMARKS}"
    assert b"clicks" not in world.disk.read(path)
    world.tasks.run_for_ms(300)
    assert world.disk.read(path) == b"0\n1\nclicks 0 2\n"
    assert b"clicks" not in world.disk.read(f"/d01/{RECOVERY_POINTS}")


def test_high_watermarks_are_written_only_if_they_changed_or_were_not_saved() -> None:
    world = World()
    world.log()
    marks, path = {CLICKS: 3}, f"/d01/{HIGH_WATERMARKS}"
    world.directory.high_watermarks = lambda: dict(marks)
    scheduled(world)

    def saved_in(ms: int) -> int:
        before = len(world.disk.trace)
        world.tasks.run_for_ms(ms)
        return [repr(call) for call in world.disk.trace[before:]].count(f"rename {path}")

    assert saved_in(5_200) == 1
    assert saved_in(20_000) == 0
    marks[CLICKS] = 4
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write")
    assert saved_in(5_000) == 0
    world.disk.heal()
    assert saved_in(10_000) == 1
    assert world.disk.read(path) == b"0\n1\nclicks 0 4\n"


def test_idle_logs_close_their_files() -> None:
    world = World(retention_check_interval_ms=1000)
    log = world.log()
    append(world, log, 3)
    scheduled(world)
    assert is_open(log)
    world.tasks.run_for_ms(1100)
    assert not is_open(log)
    append(world, log, 3)
    assert log.end_offset == 6


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_without_descriptors_an_append_is_refused_and_idle_logs_close_their_files(
    code: int,
) -> None:
    world = World()
    log, idle = world.log(segment_bytes=300), world.log(VIEWS)
    append(world, log, 3)
    append(world, idle, 3)
    scheduled(world)
    world.disk.fail(code, when=lambda call: call.name in ("open", "create"))
    with pytest.raises(OutOfDescriptors) as caught:
        append(world, log, 15)
    assert caught.value.path.startswith("/d01/clicks-0/")
    assert is_open(idle)
    world.tasks.run_for_ms(1000)
    assert not is_open(idle)
    world.disk.heal()
    append(world, log, 15)
    assert lines(log) == expected_lines(18)
    assert world.failures == []


def test_a_lack_of_descriptors_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    scheduled(world)
    world.disk.fail(errno.EMFILE, when=lambda call: call.name == "open")
    for _ in range(130):
        log.close_idle()
        with pytest.raises(OutOfDescriptors):
            append(world, log, 3)
        world.tasks.run_for_ms(1000)
    told = [line for line in caplog.messages if line.startswith("too many open files")]
    assert len(told) == 3


def test_an_append_without_descriptors_leaves_no_hole() -> None:
    world = World(preallocation_step_bytes=1000)
    log = world.log()
    append(world, log, 3)
    log.close_idle()
    world.disk.fail(errno.EMFILE, when=lambda call: call.name == "open")
    with pytest.raises(OutOfDescriptors):
        append(world, log, 300)
    world.disk.heal()
    append(world, log, 3)
    assert lines(log) == expected_lines(6)


def test_an_append_after_a_start_needs_no_descriptor_for_an_index() -> None:
    """The batch used to be in the file but not in the log; the next one got the same offset."""
    world = World()
    log = world.log(index_interval_bytes=0)
    for _ in range(10):
        append(world, log, 3)
    world.restart()
    log = world.log()
    assert log.active.offset_index.size()
    assert log.active.file
    world.disk.fail(errno.EMFILE, when=lambda call: call.name == "open")
    for _ in range(3):
        append(world, log, 3)
    world.disk.heal()
    assert lines(log) == expected_lines(39)


def test_retention_without_descriptors_is_retried() -> None:
    world = World(retention_check_interval_ms=1000)
    append(world, world.log(retention_ms=1), 3)
    world.restart()
    log = world.log()
    scheduled(world)
    world.disk.fail(errno.EMFILE, when=lambda call: call.name in ("open", "create"))
    world.settle(1100)
    assert world.disk.lacks_descriptors
    assert log.start_offset == 0
    world.disk.heal()
    world.settle(1000)
    assert log.start_offset == 3
    assert world.failures == []


def test_producers_expire() -> None:
    world = World(producer_id_expiration_ms=10_000, producer_id_expiration_check_interval_ms=1000)
    log = world.log()
    append(world, log, 1, producer_id=1, producer_epoch=0, base_sequence=0)
    scheduled(world)
    world.tasks.run_for_ms(5000)
    append(world, log, 1, producer_id=2, producer_epoch=0, base_sequence=0)
    assert len(log.producers) == 2
    world.tasks.run_for_ms(6000)
    assert list(log.producers.producers) == [2]


def test_producers_expire_some_at_a_time_and_a_tick_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be 100,000 in a partition."""
    monkeypatch.setattr("kdist.storage.directory._PRODUCERS_PER_TICK", 3)
    world = World(producer_id_expiration_ms=10_000, producer_id_expiration_check_interval_ms=1000)
    logs = [world.log(), world.log(VIEWS)]
    for number in range(8):
        append(world, logs[number % 2], producer_id=number, producer_epoch=0, base_sequence=0)
    world.clock.advance_ms(10_000)
    append(world, logs[1], 1, producer_id=9, producer_epoch=0, base_sequence=0)
    schedule = scheduled(world)
    schedule.expire_producers()
    assert [len(log.producers) for log in logs] == [1, 5]  # the rest is for other ticks
    world.settle()
    assert [list(log.producers.producers) for log in logs] == [[], [9]]


def test_each_task_repeats_until_it_is_stopped() -> None:
    world = World(flush_scheduler_interval_ms=100)
    log = world.log(flush_ms=0)
    schedule = scheduled(world)
    for end in range(1, 20):
        append(world, log, 1)
        world.tasks.run_for_ms(150)
        assert log.recovery_point == end
    schedule.stop()
    append(world, log, 1)
    world.tasks.run_until_idle()  # there is nothing left that renews itself
    assert log.recovery_point == 19


def test_records_from_before_the_clock_was_set_back_are_flushed() -> None:
    world = World(flush_scheduler_interval_ms=100)
    log = world.log(flush_ms=1000)
    hour_ms = 3_600_000
    log.append_as_leader([batch_of([b"value"])], 0, world.clock.now_ms() + hour_ms)
    scheduled(world)
    world.tasks.run_for_ms(150)
    assert log.recovery_point == 1


def test_the_schedule_covers_new_logs_and_skips_deleted_ones() -> None:
    world = World(flush_scheduler_interval_ms=100)
    append(world, world.log(CLICKS, flush_ms=0), 1)
    scheduled(world)
    views = world.log(VIEWS)
    append(world, views, 1)
    world.delete()
    world.tasks.run_for_ms(1000)
    assert views.recovery_point == 1
    assert world.failures == []


def test_a_full_disk_stops_no_scheduled_work() -> None:
    world = World(flush_scheduler_interval_ms=100, retention_check_interval_ms=100)
    log = world.log(flush_ms=0, retention_bytes=300, segment_bytes=300, index_interval_bytes=0)
    scheduled(world)
    for _ in range(10):
        append(world, log, 3)
    world.disk.fail(
        errno.ENOSPC, when=lambda call: call.name in ("write", "create") and "-0/0" in call.path
    )
    world.settle(1000)
    assert log.segments[0].base_offset > 0
    world.disk.heal()
    append(world, log, 3)
    world.settle(1000)
    assert log.recovery_point == log.end_offset == 33
    assert world.failures == []
