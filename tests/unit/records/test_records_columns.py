"""Records decoded into Arrow's columns: both codecs have the same outcome for any input."""

from __future__ import annotations

from array import array
from types import ModuleType
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.client.consumer.arrow import binary
from kdist.errors import CorruptRecords
from kdist.records import _compiled, _reference
from kdist.records.record import BATCH_BYTES_MAX, BinaryColumn

BOTH = pytest.mark.parametrize("codec", [_reference, _compiled], ids=["reference", "compiled"])
INTO = ("decode_values_into", "decode_keys_into")

buffers = st.none() | st.binary(max_size=200)
bodies = st.lists(st.lists(st.tuples(buffers, buffers), max_size=20), max_size=4)


def parts(column: BinaryColumn) -> tuple[Any, ...]:
    return bytes(column.data), column.ends, bytes(column.present), column.null_count


@BOTH
@given(tables=bodies)
def test_keys_and_values_of_many_bodies_become_one_column(
    codec: ModuleType, tables: list[list[tuple[bytes | None, bytes | None]]]
) -> None:
    values, keys = BinaryColumn(), BinaryColumn()
    for table in tables:
        body = codec.encode_records([value for value, _ in table], [key for _, key in table])
        codec.decode_values_into(values, body, len(table))
        codec.decode_keys_into(keys, body, len(table))
    rows = [row for table in tables for row in table]
    assert binary(pyarrow, values).to_pylist() == [value for value, _ in rows]
    assert binary(pyarrow, keys).to_pylist() == [key for _, key in rows]
    assert len(values) == len(keys) == len(rows)
    assert len(values.present) == (len(rows) + 7) // 8


@BOTH
def test_offsets_and_timestamps_are_those_of_the_records(codec: ModuleType) -> None:
    body = codec.encode_records([b"a", b"b", b"c"], None, None, [5, 3, 1 << 60], 5)
    for numbers in [(100, 5), (0, 5, 77), (0, -1, None)]:
        records = codec.decode_records(body, 3, *numbers)
        offsets, timestamps = codec.decode_numbers(body, 3, *numbers)
        assert offsets == array("q", [record.offset for record in records])
        assert timestamps == array("q", [record.timestamp for record in records])
    assert codec.decode_numbers(b"", 0) == (array("q"), array("q"))


@given(body=st.binary(max_size=60), count=st.integers(-1, 5))
def test_both_codecs_have_the_same_outcome_for_any_bytes(body: bytes, count: int) -> None:
    for name in INTO:
        assert added(_compiled, name, body, count) == added(_reference, name, body, count)


def added(codec: ModuleType, name: str, body: bytes, count: int) -> Any:
    column = BinaryColumn()
    try:
        getattr(codec, name)(column, body, count)
    except CorruptRecords:
        return CorruptRecords
    return parts(column)


@BOTH
@pytest.mark.parametrize("numbers", [(1 << 63) - 1, -(1 << 63)])
def test_a_number_beyond_64_bits_is_corrupt(codec: ModuleType, numbers: int) -> None:
    step = 1 if numbers > 0 else -1
    body = codec.encode_records([b"a"], None, None, [step], 0)
    with pytest.raises(CorruptRecords, match="timestamp"):
        codec.decode_numbers(body, 1, 0, numbers)
    assert codec.decode_numbers(body, 1, 0, numbers - step)[1].tolist() == [numbers]
    two = codec.encode_records([b"a", b"b"])
    if step > 0:
        with pytest.raises(CorruptRecords, match="offset"):
            codec.decode_numbers(two, 2, numbers, 0)


@BOTH
def test_a_column_holds_no_more_bytes_than_one_batch_may(codec: ModuleType) -> None:
    column = BinaryColumn()
    column.ends[-1] = BATCH_BYTES_MAX
    with pytest.raises(ValueError, match="more than one batch holds"):
        codec.decode_values_into(column, codec.encode_records([b"a"]), 1)


@BOTH
@given(tables=bodies.filter(bool), rows=st.integers(0, 20), end=st.integers(1, 5))
def test_a_column_is_as_it_was_after_a_body_that_cannot_be_read(
    codec: ModuleType,
    tables: list[list[tuple[bytes | None, bytes | None]]],
    rows: int,
    end: int,
) -> None:
    for name in INTO:
        column, wanted = BinaryColumn(), BinaryColumn()
        for table in tables:
            body = codec.encode_records([value for value, _ in table], [key for _, key in table])
            broken = codec.encode_records([None] * rows + [b"long enough"])[:-end]
            with pytest.raises(CorruptRecords):
                getattr(codec, name)(column, broken, rows + 1)
            getattr(codec, name)(column, body, len(table))
            getattr(codec, name)(wanted, body, len(table))
        assert parts(column) == parts(wanted)
