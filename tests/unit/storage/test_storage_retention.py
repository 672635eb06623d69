"""Retention: Kafka's rules, invariants of every plan, and what a log directory makes of it.

That is: what is deleted, when its files are unlinked, and failures.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_world import (
    CLICKS,
    START_MS,
    VIEWS,
    World,
    append,
    batch_of,
    expected_lines,
    grown,
    lines,
    numbered,
    overwrite,
)

from kdist.errors import ApiError, DiskFull, Error
from kdist.storage.names import FileState, Suffix, parse_segment_name
from kdist.storage.trimming import (
    DeletionReason,
    DueSegment,
    RetentionLimits,
    RetentionPlan,
    SegmentFacts,
    drop,
    plan_retention,
    release,
)

NOW_MS = 1_000_000
TIME, SIZE = DeletionReason.TIME, DeletionReason.SIZE
BELOW_START = DeletionReason.LOG_START_OFFSET


def segments(*timestamps_ms: int | None, size_bytes: int = 100) -> list[SegmentFacts]:
    """Segments of ten offsets and `size_bytes` each, with these largest timestamps."""
    return [
        SegmentFacts(at * 10, size_bytes, timestamp, NOW_MS)
        for at, timestamp in enumerate(timestamps_ms)
    ]


def limits(
    retention_ms: int = -1,
    retention_bytes: int = -1,
    log_start_offset: int = 0,
    high_watermark: int = 30,
    log_end_offset: int = 30,
) -> RetentionLimits:
    return RetentionLimits(
        retention_ms, retention_bytes, log_start_offset, high_watermark, log_end_offset
    )


@pytest.mark.parametrize("retention_bytes", [-1, -2])
def test_without_limits_nothing_is_deleted(retention_bytes):
    none = limits(retention_bytes=retention_bytes)
    assert plan_retention(segments(0, 0, 0), none, NOW_MS) == RetentionPlan()


def test_an_empty_list_of_segments_has_an_empty_plan():
    assert plan_retention([], limits(0, 0), NOW_MS) == RetentionPlan()


def test_segments_whose_newest_record_is_too_old_are_deleted():
    plan = plan_retention(segments(0, 899_999, 900_000), limits(retention_ms=100_000), NOW_MS)
    assert plan == RetentionPlan((DueSegment(0, TIME), DueSegment(10, TIME)))


def test_a_segment_exactly_as_old_as_retention_ms_stays():
    plan = plan_retention(segments(900_000, 0, 0), limits(retention_ms=100_000), NOW_MS)
    assert plan.delete == ()


def test_a_segment_that_stays_protects_the_ones_behind_it():
    plan = plan_retention(segments(0, NOW_MS, 0), limits(retention_ms=100_000), NOW_MS)
    assert plan.delete == (DueSegment(0, TIME),)


@pytest.mark.parametrize("timestamp", [None, -1])
def test_a_segment_without_timestamps_is_as_old_as_its_files_last_change(timestamp):
    old = SegmentFacts(0, 100, timestamp, NOW_MS - 100_001)
    young = SegmentFacts(10, 100, timestamp, NOW_MS - 100_000)
    active = SegmentFacts(20, 100, NOW_MS, NOW_MS)
    plan = plan_retention([old, young, active], limits(retention_ms=100_000), NOW_MS)
    assert plan.delete == (DueSegment(0, TIME),)


def test_a_timestamp_in_the_future_prevents_deletion_by_time():
    plan = plan_retention(segments(0, NOW_MS + 1, 0), limits(retention_ms=100_000), NOW_MS)
    assert plan == RetentionPlan((DueSegment(0, TIME),))


def test_retention_by_size_ignores_timestamps_in_the_future():
    plan = plan_retention(segments(NOW_MS + 1, 0, 0), limits(100_000, 200), NOW_MS)
    assert plan.delete[0] == DueSegment(0, SIZE)


def test_a_segment_is_deleted_by_size_if_the_rest_still_reaches_the_limit():
    assert plan_retention(segments(0, 0, 0), limits(retention_bytes=200), NOW_MS) == RetentionPlan(
        (DueSegment(0, SIZE),)
    )
    assert plan_retention(segments(0, 0, 0), limits(retention_bytes=201), NOW_MS).delete == ()


def test_an_expired_active_segment_is_rolled_before_it_is_deleted():
    plan = plan_retention(segments(0, 0, 0), limits(retention_ms=100_000), NOW_MS)
    assert plan == RetentionPlan(
        (DueSegment(0, TIME), DueSegment(10, TIME), DueSegment(20, TIME)), roll_first=True
    )


def test_an_empty_active_segment_stays_as_it_is():
    facts = [*segments(0, 0), SegmentFacts(20, 0, None, 0)]
    plan = plan_retention(facts, limits(100_000, log_end_offset=20), NOW_MS)
    assert plan == RetentionPlan((DueSegment(0, TIME), DueSegment(10, TIME)))


def test_no_segment_that_reaches_the_high_watermark_is_deleted():
    plan = plan_retention(segments(0, 0, 0), limits(100_000, 0, 30, high_watermark=19), NOW_MS)
    assert [base_offset for base_offset, _ in plan.delete] == [0]
    plan = plan_retention(segments(0, 0, 0), limits(100_000, 0, 30, high_watermark=29), NOW_MS)
    assert not plan.roll_first


def test_segments_wholly_below_the_log_start_offset_are_deleted_whatever_the_limits():
    plan = plan_retention(segments(0, 0, 0), limits(log_start_offset=19), NOW_MS)
    assert plan == RetentionPlan((DueSegment(0, BELOW_START),))
    plan = plan_retention(segments(0, 0, 0), limits(log_start_offset=20), NOW_MS)
    assert plan == RetentionPlan((DueSegment(0, BELOW_START), DueSegment(10, BELOW_START)))


def test_the_active_segment_stays_though_all_of_it_was_deleted():
    plan = plan_retention(segments(0, 0, 0), limits(log_start_offset=30), NOW_MS)
    assert plan == RetentionPlan((DueSegment(0, BELOW_START), DueSegment(10, BELOW_START)))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.none() | st.integers(-1, 120)), max_size=8),
    st.integers(-1, 100),
    st.integers(-1, 200),
    st.integers(0, 90),
    st.integers(0, 90),
)
def test_every_plan_is_a_prefix_and_each_deletion_has_a_reason(
    shapes, retention_ms, retention_bytes, log_start_offset, high_watermark
):
    facts = [SegmentFacts(at * 10, size, ts, 50) for at, (size, ts) in enumerate(shapes)]
    end = len(facts) * 10
    asked = RetentionLimits(retention_ms, retention_bytes, log_start_offset, high_watermark, end)
    plan = plan_retention(facts, asked, now_ms=100)

    assert [one.base_offset for one in plan.delete] == [one.base_offset for one in facts][
        : len(plan.delete)
    ]
    assert len(plan.delete) * 10 <= high_watermark
    assert plan.roll_first == (bool(facts) and len(plan.delete) == len(facts))
    left = sum(one.size_bytes for one in facts)
    for segment, deletion in zip(facts, plan.delete, strict=False):
        left -= segment.size_bytes
        if deletion.reason == BELOW_START:
            assert segment.base_offset + 10 <= log_start_offset
        elif deletion.reason == SIZE:
            assert left >= retention_bytes >= 0
        else:
            assert 100 - segment.newest_ms > retention_ms >= 0


def retain(world: World) -> int:
    count = world.directory.trimmer.retain(lambda log: log.end_offset)
    world.settle()
    return count


def test_retention_by_bytes_keeps_at_least_retention_bytes() -> None:
    world = World()
    log = grown(world, 60, retention_bytes=2000)
    assert retain(world) > 0
    assert 2000 <= log.size < 2000 + 700
    assert log.start_offset == log.segments[0].base_offset > 0
    assert lines(log) == expected_lines(300, log.start_offset)


def test_retention_by_time_deletes_old_segments_and_rolls_an_expired_active_one() -> None:
    world = World()
    log = grown(world, 20, retention_ms=60_000)
    assert retain(world) == 0
    world.tasks.run_for_ms(60_000)
    count = len(log.segments)
    assert retain(world) == count
    assert log.start_offset == log.end_offset == 100
    assert len(log.segments) == 1
    assert append(world, log, 1).start_offset == 100


def test_while_an_append_is_under_way_all_segments_go_but_the_one_that_it_is_for() -> None:
    world = World()
    log = grown(world, 20, retention_ms=60_000)
    world.tasks.run_for_ms(60_000)
    count = len(log.segments)
    log.defer(log.prepare_as_leader([batch_of(numbered(100, 1))], 0, START_MS))
    assert retain(world) == count - 1
    assert log.start_offset == log.segments[0].base_offset < log.end_offset


def test_segments_whose_start_is_saved_cost_no_sync_of_their_directory_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    log = grown(world, 60, retention_bytes=0)
    sync, synced = world.files.sync_directory, list[str]()

    def watched(path: str) -> None:
        synced.append(path)
        sync(path)

    monkeypatch.setattr(world.files, "sync_directory", watched)
    assert retain(world) > 10
    assert synced.count(log.directory) < 5


def test_retention_uses_the_records_timestamps_and_not_the_files() -> None:
    world = World()
    log = world.log(segment_bytes=300, retention_ms=60_000)
    for age_ms in (90_000, 80_000, 10_000, 0):
        append(world, log, 20, timestamp=START_MS - age_ms)
    retain(world)
    assert log.start_offset == 40


def test_retention_keeps_uncommitted_records() -> None:
    world = World()
    log = grown(world, 60, retention_bytes=0)
    world.directory.trimmer.retain(lambda log: 40)
    world.settle()
    assert log.start_offset <= 40 < log.segments[1].base_offset


@pytest.mark.parametrize("policy", [("compact",), ()])
def test_a_log_without_the_delete_policy_loses_nothing_to_retention(
    policy: tuple[str, ...],
) -> None:
    world = World()
    log = grown(world, 30, retention_bytes=0, retention_ms=1, cleanup_policy=policy)
    world.settle(1000)
    assert retain(world) == 0
    assert lines(log) == expected_lines(150)


def test_retired_files_are_renamed_at_once_and_unlinked_a_minute_later() -> None:
    world = World()
    grown(world, 30, retention_bytes=2000)
    retain(world)
    states = [part.state for part in map(parse_segment_name, world.names()) if part]
    assert FileState.DELETED in states
    world.tasks.run_for_ms(60_000)
    states = [part.state for part in map(parse_segment_name, world.names()) if part]
    assert set(states) == {FileState.LIVE}


def test_retention_continues_with_other_logs_where_one_cannot_roll_on_a_full_disk() -> None:
    world = World()
    log = grown(world, 20, retention_ms=1)
    other = world.log(VIEWS)
    append(world, other, 1)
    world.tasks.run_for_ms(100)
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "create" and "clicks" in call.path)
    retain(world)
    assert other.start_offset == 1
    world.disk.heal()
    retain(world)
    assert log.start_offset == log.end_offset == 100
    assert world.failures == []


def test_a_segment_that_cannot_be_renamed_on_a_full_disk_is_deleted_later() -> None:
    """A longer name may need a block. Its files used to stay until the next start."""
    world = World()
    log = grown(world, 60, retention_bytes=2000)
    first = world.path_of(0, Suffix.LOG)
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "rename" and first in call.path)
    retain(world)
    assert log.start_offset > 0
    assert lines(log) == expected_lines(log.end_offset)
    world.disk.heal()
    retain(world)
    assert log.segments[0].base_offset == log.start_offset
    assert not world.disk.exists(first)
    assert world.failures == []


@pytest.mark.parametrize("suffix", [Suffix.INDEX, Suffix.TIME_INDEX])
def test_a_segment_whose_index_cannot_be_renamed_on_a_full_disk_is_deleted_whole(
    suffix: Suffix,
) -> None:
    """The segment used to stay in the log without its file."""
    world = World()
    log = grown(world, 60, retention_bytes=2000)
    index = world.path_of(0, suffix)
    log.close_idle()
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "rename" and index in call.path)
    retain(world)
    assert lines(log) == expected_lines(log.end_offset, log.start_offset)
    assert world.disk.exists(index)
    world.disk.heal()
    world.restart()
    assert not world.disk.exists(index)
    assert lines(world.log()) == expected_lines(300, log.start_offset)


def test_retention_frees_a_full_disk() -> None:
    world = World()
    log = grown(world, 60, retention_bytes=2000)
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name in ("write", "create"))
    assert retain(world) > 0
    assert log.size < 2700
    world.tasks.run_for_ms(60_000)
    assert not [name for name in world.names() if name.endswith(".deleted")]
    assert world.failures == []


def test_retention_of_a_deleted_partition_leaves_the_recreated_ones_files_alone() -> None:
    world = World()
    grown(world, 20, retention_bytes=0)
    world.directory.trimmer.retain(lambda log: log.end_offset)
    world.directory.delete(CLICKS, lambda _error: None)
    with pytest.raises(ApiError) as caught:  # the save that is under way
        world.log()
    assert caught.value.error is Error.KAFKA_STORAGE_ERROR
    world.settle()
    log = world.log()
    append(world, log, 3)
    assert world.files.exists(world.path_of(0, Suffix.LOG))
    world.flush(log)
    world.kill()
    assert lines(world.open().logs[CLICKS]) == expected_lines(3)


def test_a_partition_may_be_deleted_while_retention_saves_offsets() -> None:
    world = World()
    grown(world, 20, retention_bytes=0)
    other = world.log(VIEWS)
    for _ in range(20):
        append(world, other, 5)
    world.directory.trimmer.retain(lambda log: log.end_offset)
    world.directory.delete(CLICKS, lambda _error: None)
    world.settle()
    assert other.start_offset == other.segments[0].base_offset == 100
    assert world.failures == []


def test_a_segment_dropped_while_a_full_disk_fails_its_flush_is_not_flushed_again() -> None:
    world = World()
    log = world.log(segment_bytes=300, index_interval_bytes=0, retention_bytes=0)
    append(world, log, 20)
    append(world, log, 20)
    gone = release(log, 20, START_MS)
    heard: list[BaseException | None] = []
    world.disk.fail(errno.ENOSPC, when=lambda call: ".snapshot" in call.path, forever=False)
    world.directory.flusher.request(log, heard.append)
    world.tasks.run_until(lambda: log.is_busy, 1000)
    drop(log, gone, is_start_saved=True)
    world.settle()
    assert isinstance(heard[0], DiskFull)
    world.flush(log)
    assert log.recovery_point == log.end_offset == 40
    assert lines(log) == expected_lines(40, 20)


@pytest.mark.parametrize("is_flushed", [False, True])
def test_retention_on_a_full_disk_leaves_no_hole_whatever_a_power_loss_keeps(
    is_flushed: bool,
) -> None:
    """The start offset found no room: segments that reappear must adjoin those that stayed."""
    for seed in range(60):
        world = World(seed=seed)
        log = grown(world, 40)
        if is_flushed:
            world.wait(world.directory.saver.request)
        log.configure(replace(log.settings, retention_bytes=1000))
        world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write")
        assert retain(world) > 3
        world.lose_power()
        log = world.open().logs[CLICKS]
        assert log.end_offset == 200
        assert lines(log) == expected_lines(200, log.segments[0].base_offset)


# DeleteRecords


@pytest.mark.parametrize("offset", range(0, 61, 5))
def test_a_delete_of_records_takes_what_lies_wholly_before_it_and_no_more(offset: int) -> None:
    """Though all of it is past retention: that is for its next check."""
    world = World()
    log = grown(world, 12, retention_ms=0, retention_bytes=0)
    bases = [segment.base_offset for segment in log.segments]
    world.delete_records(log, offset)
    assert log.start_offset == offset
    assert [segment.base_offset for segment in log.segments] == [
        base for base, end in zip(bases, [*bases[1:], 1 << 62], strict=True) if end > offset
    ]
    assert lines(log) == expected_lines(60, log.segments[0].base_offset)
    assert retain(world) > 0
    assert log.start_offset == log.end_offset


def test_a_delete_takes_no_segment_below_a_start_that_another_has_yet_to_save() -> None:
    """Else a power loss could leave a hole, before which all would seem to be lost."""
    for seed in range(60):
        world = World(seed=seed)
        log = grown(world, 40)
        world.wait(world.directory.saver.request)
        ended: list[BaseException | None] = []
        world.directory.trimmer.delete_records(log, 5, ended.append)
        world.directory.trimmer.delete_records(log, 150, lambda _: None)
        assert world.tasks.run_until(partial(bool, ended), 1_000)
        world.lose_power()
        log = world.open().logs[CLICKS]
        assert log.end_offset == 200
        assert lines(log) == expected_lines(200, log.segments[0].base_offset)


def test_segments_below_the_start_of_a_log_that_is_being_cut_wait_for_retention() -> None:
    world = World()
    log = grown(world, 12)
    world.directory.trimmer.delete_records(log, 45, lambda _: None)
    world.directory.trimmer.truncate(log, 50, lambda _: None)
    count = len(log.segments)
    world.tasks.run_until(lambda: not log.is_truncating, 1_000)
    assert log.segments[0].base_offset == 0
    assert (log.start_offset, len(log.segments)) == (45, count)
    assert retain(world) == count - 1


def test_where_the_start_finds_no_room_no_segment_goes() -> None:
    world = World()
    log = grown(world, 12)
    count = len(log.segments)
    world.disk.fail(errno.ENOSPC, when=lambda call: "checkpoint" in call.path)
    with pytest.raises(DiskFull):
        world.delete_records(log, 45)
    assert len(log.segments) == count


# What is counted


def counted(world: World) -> tuple[int, int]:
    return world.metrics.deleted_segments, world.metrics.deleted_bytes


def test_segments_deleted_by_retention_and_by_request_are_counted() -> None:
    world = World()
    log = grown(world, 12, retention_bytes=0)
    size, count = log.size, len(log.segments)
    world.delete_records(log, 20)
    assert counted(world) == (1, size - log.size)
    retain(world)
    assert counted(world) == (count, size)


def test_segments_that_are_cut_off_or_replaced_do_not_count_as_deleted() -> None:
    world = World()
    log = grown(world, 12)
    world.truncate(log, 15)
    log = grown(world, 12)
    world.kill()
    overwrite(world.disk, world.path_of(log.segments[1].base_offset, Suffix.LOG), b"damaged")
    world.open()
    log = world.log()
    world.truncate(log, 0)
    world.wait(lambda done: world.directory.trimmer.truncate_fully(log, 90, done))
    assert log.start_offset == 90
    assert counted(world) == (0, 0)
