"""Appending to a log: offsets, patched headers, producers, several appends under way, rolling."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_world import START_MS, World, append, batch_of, expected_lines, lines, numbered, write

from kdist.errors import ApiError, Error
from kdist.records.batch import Batch, read_header
from kdist.storage.append import Append
from kdist.storage.log import Log
from kdist.storage.segment import FILE_BYTES_MAX
from tests.refusals import refused


def headers(log: Log) -> list[tuple[int, int]]:
    """Base offset and leader epoch of every batch."""
    return [
        (header.base_offset, header.partition_leader_epoch)
        for segment in log.segments
        for _, header in segment.walk_headers()
    ]


# Offsets and header fields that the leader writes


def test_offsets_are_assigned_densely_from_the_log_end() -> None:
    world = World()
    log = world.log()
    first = log.append_as_leader([batch_of(numbered(0, 3)), batch_of(numbered(3, 2))], 0, START_MS)
    second = append(world, log, 4)
    assert (first.start_offset, first.end_offset) == (0, 5)
    assert (second.start_offset, second.end_offset) == (5, 9)
    assert lines(log) == expected_lines(9)


def test_the_leader_writes_offset_and_epoch_into_a_writable_buffer_in_place() -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    batch = batch_of(numbered(3, 2), base_offset=77)
    log.append_as_leader([batch], 5, START_MS)
    patched = read_header(batch.data)
    assert (patched.base_offset, patched.partition_leader_epoch) == (3, 5)
    assert headers(log) == [(0, 0), (3, 5)]


def test_a_read_only_buffer_is_refused_and_left_alone() -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    header, data = batch_of(numbered(3, 2), base_offset=77)
    with pytest.raises(BufferError):
        log.append_as_leader([Batch(header, bytes(data))], 5, START_MS)
    assert headers(log) == [(0, 0)]
    append(world, log, 2)
    assert lines(log) == expected_lines(5)


def test_a_new_leader_epoch_begins_where_its_first_batch_does() -> None:
    world = World()
    log = world.log()
    append(world, log, 3, epoch=2)
    append(world, log, 3, epoch=2)
    append(world, log, 3, epoch=7)
    assert [tuple(entry) for entry in log.epochs.entries] == [(2, 0), (7, 6)]


def test_appends_are_counted() -> None:
    world = World()
    log = world.log()
    append(world, log, 3)
    append(world, log, 2)
    size = log.size
    metrics = world.metrics
    assert (metrics.appended_batches, metrics.appended_records) == (2, 5)
    assert metrics.appended_bytes == log.size == size


# Producers


def test_a_duplicate_batch_gets_its_original_offsets_and_is_not_written() -> None:
    world = World()
    log = world.log()
    append(world, log, 2)
    append(world, log, 3, producer_id=9, producer_epoch=0, base_sequence=0)
    append(world, log, 1)
    again = append(world, log, 3, producer_id=9, producer_epoch=0, base_sequence=0)
    assert again.duplicate is not None
    assert (again.start_offset, again.end_offset) == (2, 5)
    assert log.end_offset == log.reserved_offset == 6
    assert lines(log) == expected_lines(6)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"producer_epoch": 1, "base_sequence": 4}, Error.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ({"producer_epoch": 0, "base_sequence": 3}, Error.INVALID_PRODUCER_EPOCH),
        ({"producer_epoch": 2, "base_sequence": 3}, Error.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
)
def test_a_sequence_gap_or_an_old_producer_epoch_is_refused(
    fields: dict[str, int], error: Error
) -> None:
    world = World()
    log = world.log()
    append(world, log, 3, producer_id=9, producer_epoch=1, base_sequence=0)
    writes = world.disk.calls["write"]
    with refused(error):
        append(world, log, 1, producer_id=9, **fields)
    assert world.disk.calls["write"] == writes
    assert log.reserved_offset == log.end_offset == 3
    append(world, log, 1, producer_id=9, producer_epoch=1, base_sequence=3)
    assert lines(log) == expected_lines(4)


# Several appends under way


def test_appends_reserved_one_after_the_other_are_published_in_that_order() -> None:
    world = World()
    log = world.log()
    first = log.defer(log.prepare_as_leader([batch_of(numbered(0, 2))], 0, START_MS))
    second = log.defer(log.prepare_as_leader([batch_of(numbered(2, 3))], 0, START_MS))
    assert (log.end_offset, log.reserved_offset) == (0, 5)
    write(second)  # threads may end in any order
    write(first)
    log.publish(first, START_MS)
    assert (log.end_offset, log.is_appending) == (2, True)
    log.publish(second, START_MS)
    assert (log.end_offset, log.is_appending) == (5, False)
    assert lines(log) == expected_lines(5)


def test_publishing_out_of_order_is_a_bug() -> None:
    world = World()
    log = world.log()
    log.defer(log.prepare_as_leader([batch_of(numbered(0, 2))], 0, START_MS))
    second = log.defer(log.prepare_as_leader([batch_of(numbered(2, 3))], 0, START_MS))
    with pytest.raises(AssertionError):
        log.publish(second, START_MS)


@pytest.mark.parametrize("failed", range(4))
@pytest.mark.parametrize("written", range(5))
def test_abandoning_an_append_abandons_those_behind_it_and_leaves_no_trace(
    failed: int, written: int
) -> None:
    """Four under way, of which `written` have reached the file when number `failed` fails."""
    world = World()
    log = world.log()
    append(world, log, 3, producer_id=1, producer_epoch=0, base_sequence=0)
    under_way: list[Append] = []
    for number in range(4):
        batch = batch_of(
            numbered(3 + 2 * number, 2),
            producer_id=1 + number % 2,
            producer_epoch=0,
            base_sequence=2 * (number // 2) + (0 if number % 2 else 3),
        )
        under_way.append(log.defer(log.prepare_as_leader([batch], 0, START_MS)))
    for piece in under_way[:written]:
        write(piece)
    for piece in under_way[:failed]:
        write(piece)
        log.publish(piece, START_MS)
    log.abandon(under_way[failed])
    end = 3 + 2 * failed
    assert log.end_offset == log.reserved_offset == end
    assert not log.is_appending
    assert log.active.file.size() == log.active.size
    assert lines(log) == expected_lines(end)
    for number in range(failed, 4):  # every producer goes on as if nothing had been sent
        append(
            world,
            log,
            2,
            producer_id=1 + number % 2,
            producer_epoch=0,
            base_sequence=2 * (number // 2) + (0 if number % 2 else 3),
        )
    assert lines(log) == expected_lines(11)


# Rolling


def test_the_log_rolls_before_a_segment_would_outgrow_segment_bytes() -> None:
    world = World()
    log = world.log(segment_bytes=1000)
    for _ in range(20):
        append(world, log, 3)
    assert len(log.segments) > 1
    assert all(segment.size <= 1000 for segment in log.segments)
    append(world, log, 3)
    *_, (_, newest) = log.active.walk_headers()
    assert log.segments[0].size + newest.size > 1000  # it was full
    assert lines(log) == expected_lines(63)
    assert world.metrics.rolled_segments == len(log.segments) - 1


def test_a_batch_larger_than_segment_bytes_gets_its_own_segment() -> None:
    world = World()
    log = world.log(segment_bytes=500)
    append(world, log, 1)
    append(world, log, 1, size=2000)
    append(world, log, 1)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]


def test_the_log_rolls_once_a_segments_first_record_is_segment_ms_older_than_the_next() -> None:
    world = World()
    log = world.log(segment_ms=1000)
    for timestamp in (0, 500, 1000, 1001, 1500, 2001, 2002):
        append(world, log, timestamp=START_MS + timestamp)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]


def test_without_timestamps_a_segments_age_is_measured_by_the_clock() -> None:
    world = World()
    log = world.log(segment_ms=1000)
    for _ in range(4):
        append(world, log, timestamp=-1)
        world.settle(600)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_after_a_truncation_a_segments_age_counts_from_its_new_first_record() -> None:
    world = World()
    log = world.log(segment_ms=1000)
    append(world, log, timestamp=START_MS + 900)
    world.flush(log)
    world.truncate(log, 0)
    for timestamp in (0, 1000, 1001):
        append(world, log, timestamp=START_MS + timestamp)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def segment_ages(jitter_ms: int) -> list[int]:
    """From each segment's first timestamp to the next one's, ms, with `segment.ms` of 10 s."""
    world = World(seed=5)
    log = world.log(segment_ms=10_000, segment_jitter_ms=jitter_ms)
    for timestamp in range(0, 200_000, 100):
        append(world, log, timestamp=START_MS + timestamp)
    firsts = [segment.base_offset * 100 for segment in log.segments]
    return [after - before for before, after in pairwise(firsts)]


def test_jitter_makes_logs_roll_at_different_times() -> None:
    ages = segment_ages(5_000)
    assert all(5_000 < age <= 10_100 for age in ages)
    assert len(set(ages)) > 5


def test_jitter_above_the_age_counts_as_the_age() -> None:
    """A new segment for nearly each record would fill the disk with files; as in Kafka."""
    ages = segment_ages(10_000_000)
    assert max(ages) <= 10_100
    assert 3_000 < sum(ages) / len(ages) < 7_000


def test_the_log_rolls_when_an_index_is_full() -> None:
    world = World()
    log = world.log(segment_index_bytes=120, index_interval_bytes=0)
    for _ in range(40):
        world.settle(1)
        append(world, log)
    assert len(log.segments) > 3
    assert all(len(segment.time_index) <= 10 for segment in log.segments)
    assert lines(log) == expected_lines(40)


@given(
    st.integers(20, 400),
    st.sampled_from([0, 1, 100, 500]),
    st.lists(st.integers(1, 400), min_size=30),
)
def test_no_index_outgrows_its_limit(limit: int, interval: int, sizes: list[int]) -> None:
    world = World()
    log = world.log(segment_index_bytes=limit, index_interval_bytes=interval)
    for size in sizes:
        world.clock.advance_ms(1)
        append(world, log, size=size + 5)
    assert all(segment.index_bytes <= max(limit, 24) for segment in log.segments)


def test_the_log_rolls_before_relative_offsets_pass_an_int32() -> None:
    world = World()
    log = world.log()
    append(world, log)
    for delta in (2**31 - 3, 0):
        batch = batch_of([b"x"])
        compacted = batch.header._replace(last_offset_delta=delta)
        log.append_as_leader([Batch(compacted, batch.data)], 0, START_MS)
    assert [segment.base_offset for segment in log.segments] == [0]
    assert log.end_offset == 2**31
    append(world, log)
    assert [segment.base_offset for segment in log.segments] == [0, 2**31]


def test_a_roll_waits_until_no_append_is_under_way() -> None:
    world = World()
    log = world.log(segment_bytes=300)
    first = log.defer(log.prepare_as_leader([batch_of(numbered(0, 5))], 0, START_MS))
    second = log.defer(log.prepare_as_leader([batch_of(numbered(5, 15))], 0, START_MS))
    assert second.segment is first.segment
    for piece in (first, second):
        write(piece)
        log.publish(piece, START_MS)
    append(world, log)
    assert [segment.base_offset for segment in log.segments] == [0, 20]


def test_a_batch_that_cannot_be_placed_while_a_roll_waits_gets_a_retriable_error() -> None:
    world = World()
    log = world.log()
    first = log.defer(log.prepare_as_leader([batch_of(numbered(0, 1))], 0, START_MS))
    batch = batch_of([b"x"])
    wide = Batch(batch.header._replace(last_offset_delta=FILE_BYTES_MAX), batch.data)
    with pytest.raises(ApiError) as caught:
        log.prepare_as_leader([wide], 0, START_MS)
    assert caught.value.error is Error.KAFKA_STORAGE_ERROR
    assert caught.value.error.retriable
    assert log.reserved_offset == 1
    write(first)
    log.publish(first, START_MS)
    assert lines(log) == expected_lines(1)


def test_new_settings_apply_from_the_next_append() -> None:
    world = World()
    log = world.log()
    append(world, log, 10)
    log.configure(world.topic.__class__(segment_bytes=100))
    append(world, log, 1)
    assert [segment.base_offset for segment in log.segments] == [0, 10]
