"""Ranges: every offset is in exactly one of them, however they are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdist.model import TopicPartition
from kdist.spark.ranges import Range, cut

WHOLE = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=6).map(
    lambda rows: [
        Range(TopicPartition("t", number), start, start + size)
        for number, (start, size) in enumerate(rows)
    ]
)


@given(WHOLE, st.none() | st.integers(1, 40), st.none() | st.integers(1, 300))
def test_every_offset_is_in_one_range(
    whole: list[Range], partitions_min: int | None, records_max: int | None
) -> None:
    parts = cut(whole, partitions_min, records_max)
    found = [(part.partition, each) for part in parts for each in range(part.start, part.end)]
    wanted = [(each.partition, n) for each in whole for n in range(each.start, each.end)]
    assert sorted(found) == sorted(wanted)
    assert all(part.size > 0 for part in parts)
    if records_max is not None:
        assert all(part.size <= records_max for part in parts)


def test_large_partitions_are_split_into_more_parts_than_small_ones() -> None:
    large, small = Range(TopicPartition("t", 0), 0, 900), Range(TopicPartition("t", 1), 5, 105)
    assert [part.size for part in cut([large, small], 10)] == [100] * 10
    assert cut([large, small], 2) == [large, small]


def test_a_partition_is_never_split_into_more_parts_than_it_has_offsets() -> None:
    assert len(cut([Range(TopicPartition("t", 0), 7, 10)], 50)) == 3
