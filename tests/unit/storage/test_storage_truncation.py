"""Truncation and DeleteRecords, which cut a log at its end and start, also with a power loss."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from storage_world import (
    CLICKS,
    START_MS,
    World,
    append,
    append_some,
    batch_of,
    expected_lines,
    find_by_timestamp,
    grown,
    lines,
    numbered,
    overwrite,
    write,
)

from kdist.errors import DiskFull, Error
from kdist.runtime.tasks import Done
from kdist.storage.log import Log
from kdist.storage.names import FileState, Suffix, parse_segment_name
from kdist.storage.reading import read
from kdist.storage.trimming import truncate
from kdist.testing.simulated_disk import PowerLoss
from tests.refusals import refused


def snapshots(world: World) -> list[int]:
    parsed = map(parse_segment_name, world.names())
    return [name.base_offset for name in parsed if name and name.suffix is Suffix.SNAPSHOT]


# Truncation


@pytest.mark.parametrize("offset", range(0, 62, 3))
def test_truncation_drops_the_batch_that_holds_the_offset_and_all_behind_it(offset: int) -> None:
    world = World()
    log = grown(world, 12)
    world.truncate(log, offset)
    end = min(offset - offset % 5, 60)
    assert log.end_offset == log.reserved_offset == log.recovery_point == end
    assert lines(log) == expected_lines(end)
    append(world, log, 7)
    assert lines(log) == expected_lines(end + 7)
    found = find_by_timestamp(log, world.clock.now_ms())
    assert found is not None
    assert found.offset == end


@pytest.mark.parametrize("offset", [0, 5, 23, 45])
def test_a_confirmed_truncation_survives_a_power_loss(offset: int) -> None:
    for seed in range(10):
        world = World(seed=seed)
        log = grown(world, 12)
        world.truncate(log, offset)
        world.lose_power()
        log = world.open().logs[CLICKS]
        assert lines(log) == expected_lines(offset - offset % 5)


def test_truncation_restores_epochs_and_producers() -> None:
    world = World()
    log = world.log(segment_bytes=400)
    for number in range(10):
        append(
            world, log, 5, epoch=number, producer_id=3, producer_epoch=0, base_sequence=5 * number
        )
    world.flush(log)
    world.truncate(log, 27)
    assert log.epochs.latest == 4
    producer = log.producers.producer(3)
    assert producer is not None
    assert producer.last_sequence == 24
    assert (
        append(world, log, 5, epoch=4, producer_id=3, producer_epoch=0, base_sequence=25).duplicate
        is None
    )


def test_truncation_above_the_end_changes_nothing() -> None:
    world = World()
    log = grown(world, 3)
    world.truncate(log, 99)
    assert lines(log) == expected_lines(15)


def test_truncation_into_the_batch_of_the_log_start_leaves_no_file_of_the_records_cut_off() -> None:
    world, log = deleted_within_a_batch()
    append(world, log, 3)
    world.truncate(log, 7)
    parsed = map(parse_segment_name, world.names())
    logs = {part.base_offset for part in parsed if part and part.state is FileState.LIVE}
    assert logs == {segment.base_offset for segment in log.segments} == {5}
    assert log.size == 0


def test_truncation_into_the_batch_of_the_log_start_leaves_the_log_empty() -> None:
    world, log = deleted_within_a_batch()
    world.truncate(log, 7)
    assert log.start_offset == log.end_offset == log.reserved_offset == 5
    append(world, log, 3)
    piece = read(log, 5, 1000)
    assert piece is not None
    piece.release()
    world.restart()
    assert (world.log().start_offset, world.log().end_offset) == (5, 8)


def test_records_appended_at_truncated_offsets_count_as_unflushed() -> None:
    """The batch that held the offset began below it: no recovery point may stay in there."""
    world = World()
    log = world.log(index_interval_bytes=0)
    append(world, log, 100)
    world.flush(log)
    world.truncate(log, 50)
    assert log.end_offset == 0
    for _ in range(60):
        append(world, log, 1)
    log.close_idle()  # the index reaches the file
    world.kill()
    path = world.path_of(0, Suffix.LOG)
    content = world.disk.read(path)
    size = len(content) // 60
    # One page of records was lost, the index was not.
    overwrite(world.disk, path, content[: 10 * size] + bytes(size) + content[11 * size :])
    log = world.open().logs[CLICKS]
    assert log.end_offset == 10
    assert lines(log) == expected_lines(10)


def test_a_flush_requested_during_a_refused_truncation_is_done() -> None:
    world = World()
    log = grown(world, 3)
    append(world, log, 1)
    heard: list[BaseException | None] = []
    world.disk.fail(errno.ENOSPC, when=lambda call: "checkpoint" in call.path, forever=False)
    world.directory.trimmer.truncate(log, 5, heard.append)
    world.directory.flusher.request(log, heard.append)
    world.settle(1000)
    assert len(heard) == 2
    assert isinstance(heard[0], DiskFull)
    assert heard[1] is None
    assert lines(log) == expected_lines(16)
    assert log.recovery_point == 16


@pytest.mark.parametrize("offset", range(0, 60, 7))
def test_no_snapshot_beyond_the_end_is_left_to_come_back_with_a_segment(offset: int) -> None:
    world = World()
    log = grown(world, 0)
    for sequence in range(0, 60, 5):
        append(world, log, 5, producer_id=3, producer_epoch=0, base_sequence=sequence)
    world.flush(log)
    world.settle()
    assert snapshots(world) == [20, 40]
    world.truncate(log, offset)
    assert all(each <= log.end_offset for each in snapshots(world))


def test_a_truncation_right_after_a_roll_leaves_no_snapshot_beyond_the_end() -> None:
    world = World()
    log = grown(world, 4)
    append(world, log, 1, producer_id=3, producer_epoch=0, base_sequence=0)
    log.roll(world.clock.now_ms())
    world.truncate(log, 10)
    world.settle()
    assert all(offset <= log.end_offset for offset in snapshots(world))


def test_truncation_on_a_full_disk_still_calls_back() -> None:
    world = World()
    log = grown(world, 6)
    append(world, log, 1)
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write")
    with pytest.raises(DiskFull):
        world.truncate(log, 5)
    world.disk.heal()
    world.truncate(log, 5)
    assert lines(log) == expected_lines(5)
    assert world.failures == []


def test_truncation_succeeds_where_only_the_index_finds_no_room() -> None:
    world = World()
    log = world.log(index_interval_bytes=0)
    for _ in range(12):
        world.clock.advance_ms(1)
        append(world, log, 5)
    world.flush(log)
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write" and "index" in call.path)
    world.truncate(log, 20)
    append(world, log, 5)
    assert lines(log) == expected_lines(25)
    world.disk.heal()
    world.flush(log)
    world.lose_power()
    assert lines(world.open().logs[CLICKS]) == expected_lines(25)


def deleted_within_a_batch() -> tuple[World, Log]:
    world = World()
    log = world.log()
    append(world, log, 10)
    world.flush(log)
    world.delete_records(log, 5)
    return world, log


def test_deleted_records_stay_deleted_where_a_full_disk_refuses_a_truncation() -> None:
    world, log = deleted_within_a_batch()
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write")
    with pytest.raises(DiskFull):
        world.truncate(log, 7)
    assert (log.start_offset, log.end_offset) == (5, 10)


def test_deleted_records_stay_deleted_where_a_power_loss_interrupts_a_truncation() -> None:
    n, is_done = 0, False
    while not is_done:
        n += 1
        world, log = deleted_within_a_batch()
        world.disk.crash_at(n)
        try:
            world.truncate(log, 7)
            is_done = True
            world.lose_power()
        except PowerLoss:
            world.files = world.disk.power_on()
        log = world.open().logs[CLICKS]
        assert lines(log) == [] or log.start_offset == 5
    assert n > 10


@pytest.mark.parametrize("refused", range(6))
def test_records_appended_after_a_truncation_below_the_start_survive_a_power_loss(
    refused: int,
) -> None:
    """Whichever of its checkpoints finds no room; the truncation is then requested again."""
    world, log = deleted_within_a_batch()
    world.disk.fail(
        errno.ENOSPC,
        when=lambda call: call.name == "write" and call.path.endswith("checkpoint.tmp"),
        after_calls=refused,
        forever=False,
    )
    try:
        world.truncate(log, 7)
    except DiskFull:
        world.truncate(log, 7)
    world.disk.heal()
    first = append(world, log, 3).start_offset
    world.flush(log)
    world.lose_power()
    log = world.open().logs[CLICKS]
    assert (log.start_offset, log.end_offset) == (first, first + 3)
    assert lines(log) == expected_lines(first + 3, first)


def test_a_log_without_room_for_a_new_first_segment_is_kept() -> None:
    world, log = deleted_within_a_batch()
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "create" and "/0000" in call.path)
    flushed: list[BaseException | None] = []
    refused: list[BaseException | None] = []
    world.directory.trimmer.truncate(log, 7, refused.append)
    world.directory.flusher.request(log, flushed.append)
    world.settle()
    assert [type(error) for error in refused] == [DiskFull]
    assert flushed == [None]
    world.disk.heal()
    world.truncate(log, 7)
    append(world, log, 3)
    world.flush(log)
    world.lose_power()
    assert lines(world.open().logs[CLICKS]) == expected_lines(8, 5)


def test_a_log_deleted_during_its_truncation_is_deleted() -> None:
    world = World()
    log = grown(world, 6)
    heard: list[BaseException | None] = []
    world.directory.trimmer.truncate(log, 5, heard.append)
    world.delete()
    world.settle()
    assert CLICKS not in world.directory.logs
    assert len(heard) == 1
    assert world.directory.flusher.is_idle
    assert world.failures == []


def test_a_truncation_requested_during_another_follows_it() -> None:
    world = World()
    log = grown(world, 12)
    heard: list[BaseException | None] = []
    world.directory.trimmer.truncate(log, 45, heard.append)
    world.directory.trimmer.truncate(log, 22, heard.append)
    world.settle(1000)
    assert len(heard) == 2  # the first one may hear that its end is gone by now
    assert heard[-1] is None
    assert lines(log) == expected_lines(20)
    assert log.recovery_point == 20


def test_a_segment_sealed_twice_is_forgotten_completely_when_removed() -> None:
    """A truncation made it the active one again before it was flushed."""
    world = World()
    log = world.log()
    append(world, log, 5)
    log.roll(world.clock.now_ms())
    for _ in range(2):
        append(world, log, 4)
        append(world, log, 6)
        log.roll(world.clock.now_ms())
        truncate(log, 9, START_MS)
    truncate(log, 0, START_MS)
    world.flush(log)
    assert (log.end_offset, log.recovery_point) == (0, 0)
    append(world, log, 3)
    world.flush(log)
    world.lose_power()
    assert lines(world.open().logs[CLICKS]) == expected_lines(3)


# What goes on meanwhile


def begin_truncation(world: World, log: Log, offset: int) -> list[BaseException | None]:
    """Request it, and let it begin; returns where its outcome will be."""
    heard: list[BaseException | None] = []
    world.directory.trimmer.truncate(log, offset, heard.append)
    world.tasks.run_until(lambda: log.truncating_from < log.end_offset, 100)
    assert not heard
    return heard


@pytest.mark.parametrize("offset", [0, 23, 57, 60])
def test_a_truncation_touches_no_file_on_the_loop(
    offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    log = grown(world, 12)
    trace, run_blocking, elsewhere = world.disk.trace, world.tasks.run_blocking, set[int]()

    def run_noted(work: Callable[[], None], done: Done) -> None:
        def noted() -> None:
            before = len(trace)
            try:
                work()
            finally:
                elsewhere.update(range(before, len(trace)))

        run_blocking(noted, done)

    monkeypatch.setattr(world.tasks, "run_blocking", run_noted)
    before = len(trace)
    world.truncate(log, offset)
    assert [trace[n] for n in range(before, len(trace)) if n not in elsewhere] == []
    assert lines(log) == expected_lines(offset - offset % 5)


def test_a_truncation_waits_for_the_appends_under_way() -> None:
    """As after a resignation, while a thread still writes what was reserved before."""
    world = World()
    log = grown(world, 3)
    appends = [
        log.defer(log.prepare_as_leader([batch_of(numbered(15, 5))], 0, START_MS)) for _ in range(2)
    ]
    heard: list[BaseException | None] = []
    world.directory.trimmer.truncate(log, 7, heard.append)
    world.settle(1000)
    assert heard == []
    with refused(Error.NOT_LEADER_OR_FOLLOWER):
        log.prepare_as_leader([batch_of(numbered(25, 5))], 0, START_MS)
    for each in appends:
        write(each)
        log.publish(each, START_MS)
    world.settle(1000)
    assert heard == [None]
    assert lines(log) == expected_lines(5)


def test_a_truncation_waits_for_an_append_that_fails() -> None:
    world = World()
    log = grown(world, 3)
    reserved = log.defer(log.prepare_as_leader([batch_of(numbered(15, 5))], 0, START_MS))
    heard: list[BaseException | None] = []
    world.directory.trimmer.truncate(log, 99, heard.append)
    log.abandon(reserved)
    world.settle(1000)
    assert heard == [None]
    append(world, log, 5)
    assert lines(log) == expected_lines(20)


def test_appends_are_refused_during_a_truncation_and_taken_after_it() -> None:
    world = World()
    log = grown(world, 12)
    heard = begin_truncation(world, log, 23)
    for count in (1, 2):
        batches = [batch_of(numbered(60, 1)) for _ in range(count)]
        with refused(Error.NOT_LEADER_OR_FOLLOWER):
            append_some(log, batches)
    world.settle(1000)
    assert heard == [None]
    append(world, log, 3)
    assert lines(log) == expected_lines(23)


def test_a_retry_of_what_is_being_cut_off_is_not_confirmed() -> None:
    world = World()
    log = world.log()
    for number in range(2):
        append(world, log, 5, producer_id=3, producer_epoch=0, base_sequence=5 * number)
    heard = begin_truncation(world, log, 5)
    retry = {"producer_id": 3, "producer_epoch": 0, "base_sequence": 5}
    with refused(Error.NOT_LEADER_OR_FOLLOWER):
        append(world, log, 5, **retry)
    world.settle(1000)
    assert heard == [None]
    assert append(world, log, 5, **retry).duplicate is None
    assert lines(log) == expected_lines(10)


def test_reads_during_a_truncation_find_only_what_surely_stays() -> None:
    world = World()
    log = grown(world, 12)
    world.clock.advance_ms(5)
    for offset in (0, 23, 57):
        part = read(log, offset, 1000)
        assert part is not None
        part.release()
    heard = begin_truncation(world, log, 23)
    part = read(log, 2, 1000)
    assert part is not None
    part.release()
    for offset in (log.truncating_from, 23, 57, 60):
        assert read(log, offset, 1000) is None
    with refused(Error.NOT_LEADER_OR_FOLLOWER):
        find_by_timestamp(log, 0)
    world.settle(1000)
    assert heard == [None]
    assert read(log, 20, 1000) is None
    with refused(Error.OFFSET_OUT_OF_RANGE):
        read(log, 23, 1000)


def test_a_slice_from_before_a_truncation_differs_from_its_segment_in_generation() -> None:
    world = World()
    log = grown(world, 12)
    before = [part for offset in (0, 22) if (part := read(log, offset, 1000))]
    world.truncate(log, 23)
    after = read(log, 15, 1000)
    assert after is not None
    current = [part.generation == part.segment.generation for part in (*before, after)]
    assert current == [True, False, True]
    for part in (*before, after):
        part.release()


def test_retention_and_delete_records_leave_a_log_that_is_being_truncated_alone() -> None:
    world = World()
    log = grown(world, 12, retention_bytes=0)
    heard = begin_truncation(world, log, 23)
    assert world.directory.trimmer.retain(lambda log: log.end_offset) == 0
    log.close_idle()
    with refused(Error.NOT_LEADER_OR_FOLLOWER):
        world.delete_records(log, 50)
    world.settle(1000)
    assert heard == [None]
    assert lines(log) == expected_lines(20)
    assert world.directory.trimmer.retain(lambda log: log.end_offset) > 0


@pytest.mark.parametrize("offset", [15, 99])
def test_a_truncation_at_the_end_drops_an_epoch_that_has_no_record(offset: int) -> None:
    """KAFKA-10706: the next leader's epochs would seem to diverge from it for ever."""
    world = World()
    log = grown(world, 3)
    log.epochs.assign(4, 15)
    world.truncate(log, offset)
    assert [tuple(entry) for entry in log.epochs.entries] == [(0, 0)]
    world.restart()
    assert [tuple(entry) for entry in world.log().epochs.entries] == [(0, 0)]


def test_an_epoch_that_begins_during_a_truncation_begins_where_that_ends() -> None:
    """KAFKA-7415: a leader's epoch leaves its trace though it gets no record."""
    world = World()
    log = grown(world, 3)
    heard = begin_truncation(world, log, 10)
    log.begin_epoch(4)
    world.settle(1000)
    assert heard == [None]
    assert [tuple(entry) for entry in log.epochs.entries] == [(0, 0), (4, 10)]


def test_producers_are_restored_before_the_end_moves() -> None:
    """KAFKA-12153: whoever sees the new end also sees the producers that belong to it."""
    world = World()
    log = world.log()
    for number in range(2):
        append(world, log, 5, producer_id=3, producer_epoch=0, base_sequence=5 * number)
    world.flush(log)
    heard = begin_truncation(world, log, 5)
    seen = set()
    while not heard:
        producer = log.producers.producer(3)
        seen.add((log.end_offset, producer and producer.last_sequence))
        world.tasks.run_for_ms(0.1)
    assert seen == {(10, 9), (5, 4)}


# Deleted records


def test_deleted_records_cannot_be_read() -> None:
    world = World()
    log = grown(world, 6)
    world.delete_records(log, 12)
    with refused(Error.OFFSET_OUT_OF_RANGE):
        read(log, 11, 1000)
    found = find_by_timestamp(log, 0)
    assert found is not None
    assert found.offset == 12


def test_deleted_records_stay_deleted_through_a_power_loss_once_confirmed() -> None:
    for seed in range(20):
        world = World(seed=seed)
        log = grown(world, 6)
        world.delete_records(log, 12)
        world.lose_power()
        log = world.open().logs[CLICKS]
        assert (log.start_offset, log.end_offset) == (12, 30)


def test_records_deleted_before_they_were_flushed_leave_an_empty_log_at_the_start() -> None:
    for seed in range(20):
        world = World(seed=seed)
        log = grown(world, 6)
        append(world, log, 20)
        world.delete_records(log, 50)
        world.lose_power()
        log = world.open().logs[CLICKS]
        assert log.start_offset == log.end_offset == 50
        assert append(world, log, 2).start_offset == 50
        world.restart()
        assert lines(world.log())[-2:] == expected_lines(52, 50)


def test_records_cannot_be_deleted_beyond_the_end() -> None:
    world = World()
    log = grown(world, 2)
    with refused(Error.OFFSET_OUT_OF_RANGE):
        world.delete_records(log, 11)
    assert log.start_offset == 0


def test_the_log_start_offset_never_moves_back() -> None:
    world = World()
    log = grown(world, 2)
    world.delete_records(log, 7)
    world.delete_records(log, 3)
    assert log.start_offset == 7


def test_the_epoch_of_the_log_start_begins_there() -> None:
    world = World()
    log = world.log()
    for epoch in range(3):
        append(world, log, 5, epoch=epoch)
    world.flush(log)
    world.delete_records(log, 7)
    world.restart()
    assert [tuple(entry) for entry in world.log().epochs.entries] == [(1, 7), (2, 10)]


def test_a_batch_longer_than_the_cut_offsets_is_found_by_its_own_start() -> None:
    world = World()
    log = world.log()
    log.append_as_leader([batch_of(numbered(0, 4)), batch_of(numbered(4, 4))], 0, START_MS)
    world.flush(log)
    world.truncate(log, 4)
    assert lines(log) == expected_lines(4)
