"""A group's partition is the one that every Kafka broker and tool finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.groups.context import INT32_MIN, java_hash, partition_for


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("abc", 96354),
        ("hello world", 1794106052),
        ("polygenelubricants", INT32_MIN),
        ("ü", 0xFC),
        ("\U0001f4be", 0xD83D * 31 + 0xDCBE),
    ],
)
def test_hashes_are_javas(text: str, code: int) -> None:
    assert java_hash(text) == code


def test_groups_are_where_a_kafka_broker_put_them() -> None:
    assert partition_for("readers", 2) == 0
    assert partition_for("other-readers", 2) == 1


def test_the_hash_without_a_positive_counterpart_is_partition_0() -> None:
    assert partition_for("polygenelubricants", 50) == 0


@given(st.text(), st.integers(1, 100))
def test_every_group_has_a_partition(group_id: str, partitions: int) -> None:
    assert 0 <= partition_for(group_id, partitions) < partitions
