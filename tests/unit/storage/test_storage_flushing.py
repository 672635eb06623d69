"""Flushes: when they happen, what they cover and cost, and how they fail."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from storage_world import CLICKS, World, append, expected_lines, lines

from kdist.errors import ApiError, DiskFailed, DiskFull, Error
from kdist.model import TopicPartition
from kdist.storage.directory import Schedule
from kdist.storage.flushing import SYNC_FILESYSTEM_FROM
from kdist.storage.log import Log
from kdist.storage.names import Suffix
from kdist.storage.trimming import truncate
from kdist.testing.simulated_disk import Call

Heard = list[BaseException | None]


def syncs(world: World) -> int:
    """How often a log, or the whole filesystem, was synced."""
    return sum(
        call.name == "sync_filesystem" or (call.name == "sync" and call.path.endswith(".log"))
        for call in world.disk.trace
    )


def on(name: str, part: str = "") -> Callable[[Call], bool]:
    return lambda call: call.name == name and part in call.path


def many_logs(world: World, count: int) -> list[Log]:
    logs = [world.log(TopicPartition("clicks", number)) for number in range(count)]
    for log in logs:
        append(world, log, 3)
    return logs


# What a flush covers


def test_a_flush_moves_the_recovery_point_to_the_end() -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    assert log.recovery_point == 0
    assert log in world.directory.log_context.unflushed
    world.flush(log)
    assert log.recovery_point == 3
    assert log not in world.directory.log_context.unflushed


@pytest.mark.parametrize("seed", range(20))
def test_flushed_records_survive_a_power_loss(seed: int) -> None:
    world = World(seed=seed)
    log = world.log(segment_bytes=400, index_interval_bytes=50)
    for _ in range(15):
        append(world, log, 3)
    world.flush(log)
    for _ in range(10):
        append(world, log, 3)
    world.lose_power()
    log = world.open().logs[CLICKS]
    assert log.end_offset >= 45
    assert lines(log) == expected_lines(log.end_offset)
    assert log.recovery_point == log.end_offset


def test_a_flush_covers_the_records_that_were_there_when_it_began() -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    heard: Heard = []
    world.directory.flusher.request(log, heard.append)
    world.tasks.run_until(lambda: log.is_busy, 100)
    append(world, log, 3)
    world.tasks.run_until(lambda: bool(heard), 100)
    assert heard == [None]
    assert (log.recovery_point, log.end_offset) == (3, 6)
    assert log in world.directory.log_context.unflushed


def test_appends_continue_during_a_flush_and_share_the_next_one() -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    heard: list[int] = []
    world.directory.flusher.request(log, lambda _: heard.append(log.recovery_point))
    world.tasks.run_until(lambda: log.is_busy, 100)
    before = syncs(world)
    for _ in range(5):
        append(world, log, 1)
        world.directory.flusher.request(log, lambda _: heard.append(log.recovery_point))
    world.settle()
    assert heard == [3, 8, 8, 8, 8, 8]
    assert syncs(world) - before == 2


def test_the_sealed_segments_and_their_indexes_are_synced_with_the_active_one() -> None:
    world = World()
    log = world.log(segment_bytes=300, index_interval_bytes=0)
    world.flush(log)
    for _ in range(8):
        append(world, log, 3)
    before = len(world.disk.trace)
    world.flush(log)
    synced = {
        call.path.rpartition("/")[2] for call in world.disk.trace[before:] if call.name == "sync"
    }
    for segment in log.segments[:-1]:
        name = f"{segment.base_offset:020d}"
        assert {f"{name}.log", f"{name}.index", f"{name}.timeindex"} <= synced
    assert f"{log.active.base_offset:020d}.log" in synced
    assert f"{log.active.base_offset:020d}.index" not in synced


def test_a_flush_of_a_log_that_is_already_flushed_still_calls_back() -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    world.flush(log)
    world.flush(log)
    assert log.recovery_point == 3


# Sharing


def test_one_sync_serves_all_its_waiters() -> None:
    world = World()
    log = world.log()
    append(world, log, 1)
    world.flush(log)
    before = syncs(world)
    heard: Heard = []
    for _ in range(100):
        append(world, log, 1)
        world.directory.flusher.request(log, heard.append)
    world.settle()
    assert heard == [None] * 100
    assert syncs(world) - before == 1
    assert log.recovery_point == 101


def test_a_few_logs_are_synced_one_by_one() -> None:
    world = World()
    logs = many_logs(world, SYNC_FILESYSTEM_FROM - 1)
    before = world.disk.calls["sync_filesystem"]
    heard: Heard = []
    for log in logs:
        world.directory.flusher.request(log, heard.append)
    world.settle()
    assert world.disk.calls["sync_filesystem"] == before
    assert heard == [None] * len(logs)


@pytest.mark.parametrize("seed", range(5))
def test_many_logs_are_flushed_by_one_sync_of_the_filesystem(seed: int) -> None:
    world = World(seed=seed)
    logs = many_logs(world, SYNC_FILESYSTEM_FROM)
    before = world.disk.calls
    heard: Heard = []
    for log in logs:
        world.directory.flusher.request(log, heard.append)
    world.settle()
    after = world.disk.calls
    assert after["sync_filesystem"] - before["sync_filesystem"] == 1
    assert after["sync"] == before["sync"]
    assert [log.recovery_point for log in logs] == [3] * len(logs)
    world.lose_power()
    found = world.open().logs.values()
    assert [lines(log) for log in found] == [expected_lines(3)] * len(logs)


# When


def test_a_log_is_flushed_once_flush_messages_records_are_unflushed() -> None:
    world = World()
    log = world.log(flush_messages=10)
    for _ in range(3):
        append(world, log, 3)
    world.settle()
    assert log.recovery_point == 0
    append(world, log, 3)
    world.settle()
    assert log.recovery_point == 12


def test_a_log_is_flushed_once_its_oldest_unflushed_record_is_flush_ms_old() -> None:
    world = World(flush_scheduler_interval_ms=100)
    log = world.log(flush_ms=1000)
    schedule = Schedule(world.directory, lambda log: log.end_offset)
    schedule.start()
    append(world, log, 3)
    world.tasks.run_for_ms(900)
    append(world, log, 3)
    assert log.recovery_point == 0
    world.tasks.run_for_ms(250)
    assert log.recovery_point == 6
    append(world, log, 3)
    world.tasks.run_for_ms(900)
    assert log.recovery_point == 6
    world.tasks.run_for_ms(300)
    assert log.recovery_point == 9
    schedule.stop()


def test_by_default_no_flush_happens_by_itself() -> None:
    world = World()
    log = world.log()
    schedule = Schedule(world.directory, lambda log: log.end_offset)
    before = syncs(world)
    schedule.start()
    append(world, log, 3)
    world.tasks.run_for_ms(50_000)
    schedule.stop()
    assert (syncs(world), log.recovery_point) == (before, 0)


def test_a_roll_requests_a_flush_so_that_a_start_scans_one_segment_at_most() -> None:
    world = World()
    log = world.log(segment_bytes=300)
    append(world, log, 5)
    append(world, log, 25)
    world.settle()
    assert log.recovery_point == 30


# Failures


@pytest.mark.parametrize("logs", [1, SYNC_FILESYSTEM_FROM])
def test_a_sync_that_fails_is_reported_and_nothing_counts_as_flushed(logs: int) -> None:
    world = World()
    all_logs = many_logs(world, logs)
    heard: Heard = []
    world.disk.fail(when=lambda call: call.name in ("sync", "sync_filesystem"), forever=False)
    for log in all_logs:
        world.directory.flusher.request(log, heard.append)
    world.settle()
    assert [type(error) for error in world.failures] == [DiskFailed]
    assert [type(error) for error in heard] == [DiskFailed] * logs
    assert [log.recovery_point for log in all_logs] == [0] * logs


def test_a_flush_that_cannot_open_its_files_is_reported() -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    log.close_idle()
    world.disk.fail(when=on("open", ".log"))
    heard: Heard = []
    world.directory.flusher.request(log, heard.append)
    world.settle()
    assert [type(error) for error in world.failures] == [DiskFailed]
    assert [type(error) for error in heard] == [DiskFailed]
    assert log.recovery_point == 0


def test_a_sync_after_a_failed_one_proves_nothing() -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    world.disk.fail(when=on("sync", ".log"), forever=False)
    with pytest.raises(DiskFailed):
        world.flush(log)
    heard: Heard = []
    world.directory.flusher.request(log, heard.append)
    world.settle(5000)
    assert None not in heard
    assert log.recovery_point == 0


def test_a_flush_that_lacks_room_for_a_checkpoint_is_completed_by_the_next() -> None:
    world = World()
    log = world.log(segment_bytes=300, index_interval_bytes=0)
    for _ in range(8):
        append(world, log, 3)
    world.disk.fail(errno.ENOSPC, when=on("write", ".tmp"), forever=False)
    with pytest.raises(DiskFull):
        world.flush(log)
    assert log.recovery_point == 0
    assert log in world.directory.log_context.unflushed
    append(world, log, 3)
    world.flush(log)
    world.settle()
    assert log.recovery_point == 27
    assert world.failures == []
    assert "leader-epoch-checkpoint" in world.names()
    world.lose_power()
    assert lines(world.open().logs[CLICKS]) == expected_lines(27)


def test_a_flush_refused_by_a_full_disk_is_retried_at_the_next_interval() -> None:
    world = World(flush_scheduler_interval_ms=100)
    log = world.log(flush_ms=1000)
    append(world, log, 3)
    world.flush(log)
    log.roll(world.clock.now_ms())  # a flush with no record to it, only files to save
    world.disk.fail(errno.ENOSPC, when=on("write", ".tmp"), forever=False)
    world.tasks.run_until(lambda: log.is_busy, 100)
    append(world, log, 3)
    schedule = Schedule(world.directory, lambda log: log.end_offset)
    schedule.start()
    world.tasks.run_for_ms(1500)
    schedule.stop()
    assert log.recovery_point == 6


def test_logs_that_are_due_are_flushed_in_the_order_in_which_they_were_written() -> None:
    world = World()
    logs = [world.log(TopicPartition("clicks", number), flush_ms=0) for number in range(12)]
    for log in logs:
        append(world, log, 1)
    world.settle()
    for log in logs:
        world.flush(log)
    written = [logs[number] for number in (5, 2, 9, 0, 7, 11, 1, 8)]
    for log in written:
        append(world, log, 1)
    del world.disk.trace[:]
    Schedule(world.directory, lambda log: log.end_offset).flush_due()
    world.settle()
    synced = [call.path for call in world.disk.trace if call.name == "sync"]
    assert synced == [log.active.path for log in written]


def test_records_that_a_start_on_a_full_disk_could_not_flush_are_flushed_later() -> None:
    world = World()
    append(world, world.log(flush_ms=1000), 3)
    world.kill()
    world.disk.fail(errno.ENOSPC, when=on("write"))
    log = world.open().logs[CLICKS]
    world.disk.heal()
    assert log.recovery_point == 0
    schedule = Schedule(world.directory, lambda log: log.end_offset)
    schedule.start()
    world.settle(3000)
    schedule.stop()
    assert log.recovery_point == 3
    assert not world.directory.log_context.unflushed


def test_waiters_for_a_flush_of_a_deleted_log_get_an_error() -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    heard: Heard = []
    world.directory.flusher.request(log, heard.append)
    world.directory.delete(CLICKS, lambda _error: None)
    world.settle()
    (error,) = heard
    assert isinstance(error, ApiError)
    assert error.error is Error.UNKNOWN_TOPIC_OR_PARTITION
    assert world.directory.flusher.is_idle


def grow_during_a_flush(world: World, log: Log) -> None:
    append(world, log, 3)
    world.directory.flusher.request(log)
    world.tasks.run_until(lambda: log.is_busy, 100)
    append(world, log, 3)
    world.settle()


def test_a_segment_made_active_by_a_truncation_may_grow_during_its_flush() -> None:
    world = World(preallocation_step_bytes=1 << 20)
    log = world.log()
    append(world, log, 3)
    append(world, log, 3)
    log.roll(world.clock.now_ms())
    append(world, log, 3)
    truncate(log, 3, world.clock.now_ms())
    grow_during_a_flush(world, log)
    assert lines(log) == expected_lines(9)


def test_a_segment_made_active_by_recovery_may_grow_during_its_flush() -> None:
    """A segment behind it was missing, and the start's flush found no room."""
    world = World(preallocation_step_bytes=1 << 20)
    log = world.log()
    for _ in range(2):
        append(world, log, 3)
        log.roll(world.clock.now_ms())
    append(world, log, 3)
    world.kill()
    world.disk.remove(world.path_of(3, Suffix.LOG))
    world.disk.fail(errno.ENOSPC, when=on("write"))
    log = world.open().logs[CLICKS]
    world.disk.heal()
    grow_during_a_flush(world, log)
    assert lines(log) == expected_lines(9)
