"""Ready records are returned once, in order, the partitions taking turns."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.client.consumer.batch import NotDecoded
from kdist.client.consumer.iteration import Iteration
from kdist.client.consumer.opening import Opening, open_fetched
from kdist.client.consumer.partition import CompletedFetches, Partition
from kdist.errors import CorruptRecords
from kdist.model import TopicPartition
from kdist.records.build import build_batch


def partition(number: int = 0) -> Partition:
    found = Partition(TopicPartition("t", number))
    found.seek(0)
    return found


def put(completed: CompletedFetches, into: Partition, *counts: int, **options: object) -> None:
    """Add batches of these many records after those fetched before."""
    for count in counts:
        start = into.fetch_position
        values = [b"%d" % number for number in range(start, start + count)]
        data = build_batch(values, timestamp_ms=0, base_offset=start)
        completed.put(into, open_fetched(data, Opening(into.key, start, **options)))  # type: ignore[arg-type]


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    wanted=st.lists(st.integers(0, 7), min_size=1, max_size=30),
)
def test_records_and_batches_may_be_taken_in_turn(counts: list[int], wanted: list[int]) -> None:
    """0 takes a batch; any other number takes that many records."""
    completed, one = CompletedFetches(), partition()
    put(completed, one, *counts)
    found: list[int] = []
    for count in wanted:
        if count:
            found += [record.offset for record in completed.take_records(count)]
        else:
            found += [offset for batch in completed.take_batches(1) for offset in batch.offsets()]
        assert found == list(range(len(found)))
        assert one.position == len(found)
    found += [record.offset for record in completed.take_records(1000)]
    assert found == list(range(sum(counts)))
    assert one.ready_bytes == 0
    assert completed.is_empty


def test_partitions_take_turns() -> None:
    completed, one, two = CompletedFetches(), partition(0), partition(1)
    put(completed, one, 4, 4)
    put(completed, two, 4, 4)
    assert [completed.take_records(2)[0].partition for _ in range(4)] == [0, 1, 0, 1]


def test_a_paused_partition_keeps_its_ready_records() -> None:
    completed, one = CompletedFetches(), partition()
    put(completed, one, 3)
    one.is_paused = True
    assert completed.is_empty
    assert completed.take_records(5) == []
    one.is_paused = False
    completed.offer(one)
    assert len(completed.take_records(5)) == 3


def test_a_seek_drops_the_ready_records() -> None:
    completed, one = CompletedFetches(), partition()
    put(completed, one, 3)
    one.seek(7)
    assert completed.take_records(5) == []
    assert (one.position, one.fetch_position, one.ready_bytes) == (7, 7, 0)


def test_an_error_is_raised_after_all_records_before_it_and_raised_again() -> None:
    completed, one = CompletedFetches(), partition()
    put(completed, one, 3)
    data = build_batch([b"x"], timestamp_ms=0, base_offset=3)
    data[-1] ^= 1
    completed.put(one, open_fetched(data, Opening(one.key, 3)))
    assert len(completed.take_records(10)) == 3
    for _ in range(2):
        with pytest.raises(CorruptRecords):
            completed.take_records(10)
        with pytest.raises(CorruptRecords):
            completed.take_batches(10)
    one.seek(4)
    assert completed.take_records(10) == []


def test_records_before_one_that_cannot_be_decoded_are_returned() -> None:
    def refuse_three(value: bytes) -> int:
        if value == b"3":
            raise ValueError("three")
        return int(value)

    completed, one = CompletedFetches(), partition()
    put(completed, one, 6, decoders=(None, refuse_three))
    assert [record.value for record in completed.take_records(10)] == [0, 1, 2]
    assert one.position == 3
    with pytest.raises(NotDecoded, match="t-0, offset 3"):
        completed.take_records(10)
    assert one.ready_bytes > 0


def test_room_is_reported_once_there_is_some() -> None:
    completed, one = CompletedFetches(), partition()
    put(completed, one, 4, 4)
    one.starved_above_bytes = one.ready_bytes
    completed.take_records(2)
    assert not completed.is_hungry  # of a batch that was not returned completely
    completed.take_records(2)
    assert completed.is_hungry


@given(st.integers(0, 5), st.booleans())
def test_iteration_tracks_its_position(count: int, is_settled_between: bool) -> None:
    completed, one, iteration = CompletedFetches(), partition(), Iteration()
    put(completed, one, 5)
    found, records = completed.take_run(10)
    assert found is one
    iteration.begin(one, records)
    left = iteration.left
    for _ in range(count):
        next(left)
        if is_settled_between:
            iteration.settle()
    iteration.settle()
    assert one.position == count
    assert [record.offset for record in iteration.rest(2)] == list(range(count, 5))[:2]
    assert one.position == min(count + 2, 5)
    assert [record.offset for record in iteration.rest(9)] == list(range(count, 5))[2:]
    assert one.position == 5


def test_iteration_drops_what_is_no_longer_wanted() -> None:
    completed, one, iteration = CompletedFetches(), partition(), Iteration()
    put(completed, one, 5)
    iteration.begin(*completed.take_run(10))  # type: ignore[arg-type]
    left = iteration.left
    next(left)
    iteration.drop([TopicPartition("t", 9)])
    assert next(left).offset == 1
    iteration.drop()
    assert list(left) == []
    one.seek(3)
    iteration.settle()
    assert one.position == 3


def test_iteration_leaves_a_position_that_was_looked_up_meanwhile() -> None:
    """The log lost records that iteration still returned, and the loop reset to the log's end."""
    completed, one, iteration = CompletedFetches(), partition(), Iteration()
    put(completed, one, 5)
    iteration.begin(*completed.take_run(10))  # type: ignore[arg-type]
    next(iteration.left)
    one.seek(2)
    iteration.settle()
    assert one.position == 2
    assert [record.offset for record in iteration.left] == [1, 2, 3, 4]
    iteration.drop()
    assert one.position == 2


@pytest.mark.parametrize("is_batch", [True, False])
def test_a_reset_as_the_last_batch_is_taken_is_not_undone(is_batch: bool) -> None:
    """The taking thread set the position once more: the partition was fetched from nowhere."""

    class Watched(deque):  # type: ignore[type-arg]
        def popleft(self) -> object:
            found = super().popleft()
            if not self:
                one.reset("latest")  # the loop, which looks at this moment
            return found

    completed, one = CompletedFetches(), partition()
    one.ready = Watched()
    put(completed, one, 3)
    assert len(completed.take_batches(1) if is_batch else completed.take_records(5)) > 0
    assert not one.may_be_fetched
    one.seek(7)
    assert (one.may_be_fetched, one.position) == (True, 7)


def test_a_position_set_after_a_reset_is_still_looked_up() -> None:
    completed, one, iteration = CompletedFetches(), partition(), Iteration()
    put(completed, one, 3)
    found, records = completed.take_run(5)
    assert found is one
    iteration.begin(one, records)
    one.reset("latest")
    one.position = 3  # as `settle` may, which had compared it just before
    assert one.is_missing
    assert not one.may_be_fetched
