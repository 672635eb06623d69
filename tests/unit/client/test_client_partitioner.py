"""Keys are hashed as other clients hash them."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from kdist.client import partitioner
from kdist.records import _compiled_keys, _reference_keys
from kdist.wire.pure import IS_PURE

BOTH = pytest.mark.parametrize(
    "hashing", [_reference_keys, _compiled_keys], ids=["reference", "compiled"]
)


@BOTH
@given(key=st.binary(max_size=70))
def test_the_hash_is_that_of_another_client(hashing: ModuleType, key: bytes) -> None:
    assert hashing.murmur2(key) == kafka_python_murmur2(key) & 0xFFFFFFFF


@BOTH
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
def test_the_hash_is_that_of_the_java_client(hashing: ModuleType, key: bytes, value: int) -> None:
    assert hashing.murmur2(key) == value & 0xFFFFFFFF


@BOTH
@given(keys=st.lists(st.none() | st.binary(max_size=20)), count=st.integers(1, 1000))
def test_keys_hashed_together_go_where_each_goes_alone(
    hashing: ModuleType, keys: list[bytes | None], count: int
) -> None:
    places = hashing.partitions_for(keys, count)
    assert places == _reference_keys.partitions_for(keys, count)
    assert places == [None if key is None else hashing.partition_for(key, count) for key in keys]
    assert all(place is None or 0 <= place < count for place in places)


def test_the_compiled_hash_is_used_unless_the_reference_is_asked_for() -> None:
    hashing = _reference_keys if IS_PURE else _compiled_keys
    assert partitioner.partition_for is hashing.partition_for
