"""Keys are hashed as other clients hash them."""

from __future__ import annotations

import secrets
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from kdist.client.partitioner import murmur2, partition_for


@given(st.binary(max_size=70))
def test_the_hash_is_another_clients(key: bytes) -> None:
    assert murmur2(key) == kafka_python_murmur2(key) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "value"),
    [  # of Kafka's UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_javas(key: bytes, value: int) -> None:
    assert murmur2(key) == value & 0xFFFFFFFF


@given(st.binary(max_size=20), st.integers(1, 1000))
def test_a_partition_is_one_of_the_topics(key: bytes, count: int) -> None:
    assert 0 <= partition_for(key, count) < count


@pytest.mark.parametrize(("size", "kept"), [(128, 1), (129, 0)])
def test_only_short_keys_are_kept_for_the_next_time(size: int, kept: int) -> None:
    key = secrets.token_bytes(size)
    before = sys.getrefcount(key)
    partition_for(key, 12)
    assert sys.getrefcount(key) - before == kept
