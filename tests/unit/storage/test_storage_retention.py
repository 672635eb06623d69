"""Planning retention and rolling (pure): Kafka's rules one by one, and invariants of every plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.storage.retention import (
    Deletion,
    DeletionReason,
    RetentionLimits,
    RetentionPlan,
    RollReason,
    SegmentFacts,
    choose_roll,
    plan_retention,
    waited_ms,
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
    assert plan == RetentionPlan((Deletion(0, TIME), Deletion(10, TIME)))


def test_a_segment_exactly_as_old_as_retention_ms_stays():
    plan = plan_retention(segments(900_000, 0, 0), limits(retention_ms=100_000), NOW_MS)
    assert plan.delete == ()


def test_a_segment_that_stays_protects_the_ones_behind_it():
    plan = plan_retention(segments(0, NOW_MS, 0), limits(retention_ms=100_000), NOW_MS)
    assert plan.delete == (Deletion(0, TIME),)


@pytest.mark.parametrize("timestamp", [None, -1])
def test_a_segment_without_timestamps_is_as_old_as_its_files_last_change(timestamp):
    old = SegmentFacts(0, 100, timestamp, NOW_MS - 100_001)
    young = SegmentFacts(10, 100, timestamp, NOW_MS - 100_000)
    active = SegmentFacts(20, 100, NOW_MS, NOW_MS)
    plan = plan_retention([old, young, active], limits(retention_ms=100_000), NOW_MS)
    assert plan.delete == (Deletion(0, TIME),)


def test_a_timestamp_in_the_future_prevents_deletion_by_time():
    plan = plan_retention(segments(0, NOW_MS + 1, 0), limits(retention_ms=100_000), NOW_MS)
    assert plan == RetentionPlan((Deletion(0, TIME),))


def test_retention_by_size_ignores_timestamps_in_the_future():
    plan = plan_retention(segments(NOW_MS + 1, 0, 0), limits(100_000, 200), NOW_MS)
    assert plan.delete[0] == Deletion(0, SIZE)


def test_a_segment_is_deleted_by_size_if_the_rest_still_reaches_the_limit():
    assert plan_retention(segments(0, 0, 0), limits(retention_bytes=200), NOW_MS) == RetentionPlan(
        (Deletion(0, SIZE),)
    )
    assert plan_retention(segments(0, 0, 0), limits(retention_bytes=201), NOW_MS).delete == ()


def test_an_expired_active_segment_is_rolled_before_it_is_deleted():
    plan = plan_retention(segments(0, 0, 0), limits(retention_ms=100_000), NOW_MS)
    assert plan == RetentionPlan(
        (Deletion(0, TIME), Deletion(10, TIME), Deletion(20, TIME)), roll_first=True
    )


def test_an_empty_active_segment_stays_as_it_is():
    facts = [*segments(0, 0), SegmentFacts(20, 0, None, 0)]
    plan = plan_retention(facts, limits(100_000, log_end_offset=20), NOW_MS)
    assert plan == RetentionPlan((Deletion(0, TIME), Deletion(10, TIME)))


def test_no_segment_that_reaches_the_high_watermark_is_deleted():
    plan = plan_retention(segments(0, 0, 0), limits(100_000, 0, 30, high_watermark=19), NOW_MS)
    assert [base_offset for base_offset, _ in plan.delete] == [0]
    plan = plan_retention(segments(0, 0, 0), limits(100_000, 0, 30, high_watermark=29), NOW_MS)
    assert not plan.roll_first


def test_segments_wholly_below_the_log_start_offset_are_deleted_whatever_the_limits():
    plan = plan_retention(segments(0, 0, 0), limits(log_start_offset=19), NOW_MS)
    assert plan == RetentionPlan((Deletion(0, BELOW_START),))
    plan = plan_retention(segments(0, 0, 0), limits(log_start_offset=20), NOW_MS)
    assert plan == RetentionPlan((Deletion(0, BELOW_START), Deletion(10, BELOW_START)))


def test_the_active_segment_stays_though_all_of_it_was_deleted():
    plan = plan_retention(segments(0, 0, 0), limits(log_start_offset=30), NOW_MS)
    assert plan == RetentionPlan((Deletion(0, BELOW_START), Deletion(10, BELOW_START)))


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


def roll(
    size_bytes: int = 1000,
    incoming_bytes: int = 100,
    is_expired: bool = False,
    is_index_full: bool = False,
    relative_offset: int = 5,
) -> RollReason | None:
    return choose_roll(size_bytes, incoming_bytes, 1100, is_expired, is_index_full, relative_offset)


def test_a_segment_is_filled_to_the_byte():
    assert roll(size_bytes=1000, incoming_bytes=100) is None
    assert roll(size_bytes=1000, incoming_bytes=101) == RollReason.SIZE


def test_an_expired_segment_rolls_unless_it_is_empty():
    assert roll(is_expired=True) == RollReason.TIME
    assert roll(size_bytes=0, is_expired=True) is None


def test_a_full_index_rolls():
    assert roll(is_index_full=True) == RollReason.INDEX


def test_an_offset_too_large_for_an_index_entry_rolls_even_an_empty_segment():
    assert roll(relative_offset=2**31 - 1) is None
    assert roll(relative_offset=2**31) == RollReason.OFFSET
    assert roll(size_bytes=0, relative_offset=2**31) == RollReason.OFFSET
    assert roll(size_bytes=0, relative_offset=-1) == RollReason.OFFSET


def test_an_empty_segment_takes_a_batch_larger_than_segment_bytes():
    assert roll(size_bytes=0, incoming_bytes=5000) is None


def test_a_segment_ages_by_the_timestamps_of_its_batches():
    assert waited_ms(first_timestamp_ms=500, created_ms=0, incoming_timestamp_ms=700, now_ms=9) == (
        200
    )


@pytest.mark.parametrize("first", [None, -1])
def test_a_segment_without_timestamps_ages_by_the_clock(first):
    assert waited_ms(first, created_ms=100, incoming_timestamp_ms=700, now_ms=150) == 50
