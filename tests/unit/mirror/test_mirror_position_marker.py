"""A mirror's position is written into batch headers and read back, whatever the offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import UserError
from kdist.mirror.position_marker import OFFSETS_MAX, Run, last_run, mark_of, read_run, run_for
from kdist.model import TopicPartition
from kdist.records.batch import BatchHeader, read_header
from kdist.records.build import build_batch
from kdist.storage.producers import ProducerStates

PARTITION = TopicPartition("flights", 3)
MARK = mark_of("cluster-1", PARTITION)
WRAP = 1 << 31

offsets = st.one_of(
    st.integers(0, OFFSETS_MAX - 2000),
    st.integers(1, 5).flatmap(lambda turn: st.integers(turn * WRAP - 50, turn * WRAP + 50)),
)
lengths = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 20), st.integers(0, 2)), min_size=1, max_size=12
)


def header_of(run: Run, count: int) -> BatchHeader:
    """The header that the broker gets for a batch of this run."""
    batch = build_batch(
        [b""] * count,
        timestamp_ms=1,
        producer_id=run.producer_id,
        producer_epoch=run.epoch,
        base_sequence=run.base_sequence,
    )
    return read_header(batch)


@given(start=offsets, count=st.integers(1, 1000))
def test_a_batch_says_where_it_ends_in_the_source(start: int, count: int) -> None:
    run = run_for(MARK, None, start, start + count)
    read = read_run(header_of(run, count), MARK)
    assert read == run._replace(next_offset=start + count)


@given(start=offsets, steps=lengths)
def test_a_broker_accepts_each_of_a_mirrors_batches_once(
    start: int, steps: list[tuple[int, int, int]]
) -> None:
    """Each step: unused offsets before a batch, its records, and unused offsets within it."""
    states, run, end, target_end = ProducerStates(), None, start, 0
    for gap, count, inside in steps:
        end += gap + count + inside
        run = run_for(MARK, run, end - count, end)
        header = header_of(run, count)
        assert states.check(header) is None
        states.append(header, target_end)
        duplicate = states.check(header)
        assert duplicate is not None
        assert duplicate.first_offset == target_end
        target_end += count
        run = run._replace(next_offset=end)
        assert read_run(header, MARK) == run


def test_batches_without_a_gap_are_one_run_and_a_gap_begins_another() -> None:
    first = run_for(MARK, None, 100, 110)._replace(next_offset=110)
    assert run_for(MARK, first, 110, 120) is first
    second = run_for(MARK, first, 111, 120)
    assert second.producer_id != first.producer_id
    assert second == run_for(MARK, None, 111, 120)  # every mirror that gets there chooses the same


def test_a_run_ends_before_its_sequence_becomes_ambiguous() -> None:
    first = run_for(MARK, None, WRAP - 10, WRAP)._replace(next_offset=WRAP)
    assert first.epoch == 0
    second = run_for(MARK, first, WRAP, WRAP + 5)
    assert (second.epoch, second.base_sequence) == (1, 0)
    across = run_for(MARK, None, WRAP - 10, WRAP + 5)
    assert read_run(header_of(across, 15), MARK) == across._replace(next_offset=WRAP + 5)


def test_batches_of_other_producers_carry_no_position() -> None:
    ours = header_of(run_for(MARK, None, 0, 5), 5)
    other = mark_of("cluster-2", PARTITION)
    assert other != MARK
    assert read_run(ours, other) is None
    for producer_id in (-1, 0, 7, (1 << 62) - 1):
        assert read_run(ours._replace(producer_id=producer_id), MARK) is None
    assert last_run([ours, ours._replace(producer_id=7)], MARK) == read_run(ours, MARK)
    assert last_run([], MARK) is None


def test_marks_differ_by_cluster_topic_and_partition() -> None:
    names = [("a", "t", 0), ("b", "t", 0), ("a", "u", 0), ("a", "t", 1), ("a", "t/1", 0)]
    assert len({mark_of(c, TopicPartition(t, n)) for c, t, n in names}) == len(names)


def test_offsets_that_a_header_cannot_hold_are_refused() -> None:
    run_for(MARK, None, OFFSETS_MAX - 1, OFFSETS_MAX)
    with pytest.raises(UserError, match="too large for a mirror to keep"):
        run_for(MARK, None, OFFSETS_MAX, OFFSETS_MAX + 1)
