"""Coalesced appends: one write, with the same result as single appends."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import DiskFailed, DiskFull, Error
from kdist.records.batch import Batch
from kdist.storage.log import Log
from kdist.testing.simulated_faults import PowerLoss
from tests.refusals import refused
from tests.unit.storage.storage_world import (
    CLICKS,
    START_MS,
    World,
    append,
    append_all,
    append_some,
    batch_of,
    expected_lines,
    lines,
    numbered,
)


def batches_of(counts: Sequence[int], start: int = 0, **fields: int) -> list[Batch]:
    """Batches of so many records each, whose values are their offsets from `start` on."""
    batches = []
    for count in counts:
        batches.append(batch_of(numbered(start, count), **fields))
        start += count
    return batches


def of_producer(first: int, sequence: int, producer_id: int = 7, epoch: int = 0) -> Batch:
    """A batch of one record, with the value of offset `first`."""
    fields = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    return batch_of(numbered(first, 1), **fields)


def opened(world: World, **topic: int) -> Log:
    """A log with one record, so that its segment's age counts from that."""
    log = world.log(**topic)
    append(world, log)
    append(world, log)
    return log


def test_a_group_is_one_write_and_each_batch_has_its_offset() -> None:
    world = World()
    log = opened(world)
    writes = world.disk.calls["write"]
    assert append_some(log, batches_of([1, 3, 2], 2)).offsets == [2, 3, 6]
    assert world.disk.calls["write"] == writes + 1
    assert lines(log) == expected_lines(8)
    assert (world.metrics.appended_batches, world.metrics.appended_records) == (5, 8)
    assert log.end_offset == log.reserved_offset == 8


def test_a_group_has_its_entries_in_the_indexes() -> None:
    world = World()
    log = opened(world, index_interval_bytes=100)
    append_some(log, batches_of([1] * 6, 2, timestamp=START_MS + 5))
    assert [(entry.key, entry.value) for entry in log.active.offset_index] == [
        (2, 156),
        (4, 312),
        (6, 468),
    ]
    assert log.active.largest_timestamp == (START_MS + 5, 2)


def test_a_group_rolls_in_the_middle_where_single_appends_would() -> None:
    alone, together = World(), World()
    logs = [world.log(segment_bytes=400) for world in (alone, together)]
    for batch in batches_of([1, 3, 2] * 10):
        logs[0].append_as_leader([batch], 0, START_MS)
    batches = batches_of([1, 3, 2] * 10)
    for group in (batches[:10], batches[10:20], batches[20:]):
        append_all(logs[1], group, 0, START_MS)
    assert lines(logs[1]) == lines(logs[0]) == expected_lines(60)
    assert [s.base_offset for s in logs[1].segments] == [s.base_offset for s in logs[0].segments]


def test_a_producers_batches_follow_each_other_within_a_group() -> None:
    world = World()
    log = opened(world)
    group = [of_producer(2 + number, number) for number in range(5)]
    assert append_some(log, group).offsets == [2, 3, 4, 5, 6]
    producer = log.producers.producer(7)
    assert producer is not None
    assert [(b.last_sequence, b.last_offset) for b in producer.batches] == [
        (number, 2 + number) for number in range(5)
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        of_producer(9, 1),  # sent before, in the group
        of_producer(9, 5),  # a gap
        of_producer(9, 2, epoch=1),
        of_producer(9, 0, producer_id=8),  # sent before the group
        of_producer(9, 7, producer_id=8),
    ],
)
def test_a_group_ends_before_a_batch_that_is_out_of_order(wrong: Batch) -> None:
    world = World()
    log = opened(world)
    log.append_as_leader([of_producer(2, 0, producer_id=8)], 0, START_MS)
    group = [of_producer(3, 0), of_producer(4, 1), wrong, of_producer(9, 2)]
    assert append_some(log, group).offsets == [3, 4]
    assert lines(log) == expected_lines(5)
    producer = log.producers.producer(7)
    assert producer is not None
    assert producer.last_sequence == 1


def test_a_group_whose_first_batch_is_out_of_order_is_refused() -> None:
    world = World()
    log = opened(world)
    log.append_as_leader([of_producer(2, 0)], 0, START_MS)
    with refused(Error.OUT_OF_ORDER_SEQUENCE_NUMBER):
        append_some(log, [of_producer(3, 5), *batches_of([1, 1], 3)])
    assert log.end_offset == log.reserved_offset == 3


def test_a_group_that_begins_with_a_duplicate_ends_with_it() -> None:
    world = World()
    log = opened(world)
    log.append_as_leader([of_producer(2, 0)], 0, START_MS)
    assert append_some(log, [of_producer(2, 0), *batches_of([1, 1], 3)]).offsets == (2,)
    assert log.end_offset == log.reserved_offset == 3


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, DiskFull), (errno.EIO, DiskFailed)])
def test_a_failed_write_of_a_group_leaves_no_trace(code: int, error: type[Exception]) -> None:
    world = World()
    log = opened(world, index_interval_bytes=0)
    log.append_as_leader([of_producer(2, 0)], 0, START_MS)
    size, entries, before = log.active.size, len(log.active.offset_index), log.producers.producers
    counted = world.metrics.appended_batches
    world.disk.fail(code, when=lambda call: call.name == "write", forever=False)
    with pytest.raises(error):
        append_some(log, [of_producer(3, 1), of_producer(4, 2), *batches_of([4])])
    assert log.end_offset == log.reserved_offset == 3
    assert log.active.size == log.active.file.size() == size
    assert len(log.active.offset_index) == entries
    assert log.producers.producers == before
    assert world.metrics.appended_batches == counted
    assert append_all(log, [of_producer(3, 1), of_producer(4, 2)], 0, START_MS) == [3, 4]
    assert lines(log) == expected_lines(5)


def test_a_disk_that_fills_up_while_a_group_rolls_keeps_the_batches_before() -> None:
    world = World()
    log = world.log(segment_bytes=200)
    world.directory.log_context.create_files(log)
    world.disk.fail(
        errno.ENOSPC, when=lambda call: call.name == "create", after_calls=0, forever=False
    )
    with pytest.raises(DiskFull):
        append_all(log, batches_of([1] * 5), 0, START_MS)
    assert lines(log) == expected_lines(2)
    assert append_all(log, batches_of([1] * 3, 2), 0, START_MS) == [2, 3, 4]
    assert lines(log) == expected_lines(5)


@given(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=8), min_size=1, max_size=8),
    st.integers(150, 900),
    st.integers(0, 300),
)
def test_groups_and_single_appends_leave_the_same_log(
    groups: list[list[int]], segment_bytes: int, interval: int
) -> None:
    topic = {
        "segment_bytes": segment_bytes,
        "index_interval_bytes": interval,
        "segment_index_bytes": 36,
    }
    alone, together = World().log(**topic), World().log(**topic)
    for counts in groups:
        for batch in batches_of(counts, alone.end_offset):
            alone.append_as_leader([batch], 0, START_MS)
        start = together.end_offset
        starts = append_all(together, batches_of(counts, start), 0, START_MS)
        assert list(starts) == [start + sum(counts[:n]) for n in range(len(counts))]
    assert lines(together) == lines(alone)
    for ours, theirs in zip(together.segments, alone.segments, strict=True):
        assert (ours.base_offset, ours.size) == (theirs.base_offset, theirs.size)
        assert list(ours.offset_index) == list(theirs.offset_index)
        assert list(ours.time_index) == list(theirs.time_index)


def test_a_power_loss_inside_a_groups_write_leaves_a_prefix_of_whole_batches() -> None:
    ends = set()
    for seed in range(30):
        world = World(seed=seed)
        log = opened(world)
        world.flush(log)
        world.disk.crash_at(1)
        with pytest.raises(PowerLoss):
            append_some(log, batches_of([1, 3, 2, 200, 4], 2))
        world.files = world.disk.power_on(world.rng)
        log = world.open().logs[CLICKS]
        assert lines(log) == expected_lines(log.end_offset)
        ends.add(log.end_offset)
    assert ends <= {2, 3, 6, 8, 208, 212}
    assert len(ends) > 1
