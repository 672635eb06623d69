"""Runs of batches read as one: both implementations agree, and with reading each batch alone."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import CorruptRecords
from kdist.records import _compiled, _compiled_spans, _reference, _reference_spans
from kdist.records.batch import iter_headers
from kdist.records.build import build_batch, read_batch
from kdist.records.compression import Codec
from tests.written_records import with_fields

BOTH = pytest.mark.parametrize(
    ("spans", "codec"),
    [(_reference_spans, _reference), (_compiled_spans, _compiled)],
    ids=["reference", "compiled"],
)
NOW_MS = 1_700_000_000_000
LOG_APPEND_TIME = 1 << 3


def numbered(first: int, count: int, **options: Any) -> bytearray:
    values = [b"%d" % number for number in range(first, first + count)]
    return build_batch(values, timestamp_ms=NOW_MS + first, base_offset=first, **options)


def span_at(
    spans: ModuleType,
    data: bytes | bytearray,
    at: int = 0,
    size_max: int = 1 << 20,
    **options: Any,
) -> tuple[int, int, int]:
    found: tuple[int, int, int] = spans.find_plain_span(
        memoryview(data), at, size_max, options.get("check_crcs", True)
    )
    return found


@BOTH
def test_batches_in_a_row_are_one_span(spans: ModuleType, codec: ModuleType) -> None:
    one, two, three = numbered(0, 2), numbered(2, 1), numbered(3, 4)
    data = one + two + three
    assert span_at(spans, data) == (3, len(data), 7)
    assert span_at(spans, data, len(one)) == (2, len(two + three), 5)
    assert span_at(spans, data, len(data)) == (0, 0, 0)
    assert span_at(spans, data[:-1]) == (2, len(one + two), 3)
    assert span_at(spans, data, size_max=len(data) - 1) == (2, len(one + two), 3)
    assert span_at(spans, data, size_max=1) == (1, len(one), 2)


@BOTH
@pytest.mark.parametrize(
    "other",
    [
        numbered(3, 1),
        numbered(1, 1),
        numbered(2, 1, leader_epoch=5),
        numbered(2, 1, codec=Codec.GZIP),
        numbered(2, 1, producer_id=1, base_sequence=0, is_transactional=True),
        numbered(2, 1, is_control=True),
        with_fields(numbered(2, 1), attributes=LOG_APPEND_TIME),
        with_fields(numbered(2, 1), attributes=-1),
        with_fields(numbered(2, 2), record_count=1),
        with_fields(numbered(2, 1), record_count=0, last_offset_delta=-1),
        with_fields(numbered(2, 1), record_count=9, last_offset_delta=8),
        with_fields(numbered(2, 1), magic=3),
        with_fields(numbered(2, 1), batch_length=40),
        with_fields(numbered(2, 1), batch_length=-1),
        with_fields(numbered(2, 1), crc=1),
    ],
)
def test_another_kind_of_batch_ends_the_run(
    spans: ModuleType, codec: ModuleType, other: bytearray
) -> None:
    one = numbered(0, 2)
    assert span_at(spans, one + other + numbered(3, 1)) == (1, len(one), 2)


@BOTH
def test_checksums_may_be_skipped(spans: ModuleType, codec: ModuleType) -> None:
    data = numbered(0, 1) + with_fields(numbered(1, 1), crc=1)
    assert span_at(spans, data, check_crcs=False) == (2, len(data), 2)


@BOTH
def test_a_span_ends_with_the_last_offset_of_all(spans: ModuleType, codec: ModuleType) -> None:
    last = (1 << 63) - 2
    data = b"".join(with_fields(numbered(0, 1), base_offset=at) for at in (last - 1, last))
    assert span_at(spans, data) == (2, len(data), 2)
    for offset in (last + 1, -1):
        assert span_at(spans, with_fields(numbered(0, 1), base_offset=offset)) == (0, 0, 0)


buffers = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=3), buffers), max_size=2)
rows = st.tuples(buffers, buffers, headers, st.integers(0, 1 << 40))
tables = st.lists(st.lists(rows, min_size=1, max_size=5), min_size=1, max_size=5)


def of(tables: list[list[Any]], attributes: int = 0) -> bytearray:
    """A batch of each table, in a row."""
    data, offset = bytearray(), 0
    for table in tables:
        columns = [[row[at] for row in table] for at in range(4)]
        batch = build_batch(*columns, timestamp_ms=0, base_offset=offset)
        data += with_fields(batch, attributes=attributes)
        offset += len(table)
    return data


@BOTH
@given(tables=tables, attributes=st.sampled_from([0, LOG_APPEND_TIME]))
def test_a_runs_columns_are_those_of_its_batches(
    spans: ModuleType, codec: ModuleType, tables: list[list[Any]], attributes: int
) -> None:
    data = of(tables, attributes)
    records = [record for at, _ in iter_headers(data) for record in read_batch(data, at)]
    count = len(records)
    assert span_at(spans, data) == (len(tables), len(data), count)
    assert codec.decode_values(data, count, True) == [record.value for record in records]
    assert codec.decode_keys(data, count, True) == [record.key for record in records]
    assert codec.decode_headers(data, count, True) == [record.headers for record in records]
    offsets, timestamps = codec.decode_numbers(data, count, is_span=True)
    assert list(offsets) == list(range(count))
    assert list(timestamps) == [record.timestamp for record in records]


def outcome(decode: Any, data: bytearray, count: int) -> Any:
    try:
        return decode(data, count, is_span=True)
    except CorruptRecords:
        return CorruptRecords


@given(st.integers(0, 1 << 32))
def test_both_have_the_same_outcome_for_damaged_runs(seed: int) -> None:
    rng = random.Random(seed)
    data = of([[(b"v", None, [("k", b"")], 7)] * rng.randrange(1, 4) for _ in range(3)])
    whole = span_at(_reference_spans, data)[2]
    for _ in range(rng.randrange(4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    del data[rng.choice([len(data), len(data) - 1, rng.randrange(len(data))]) :]
    for check_crcs in (False, True):
        found = span_at(_compiled_spans, data, check_crcs=check_crcs)
        assert found == span_at(_reference_spans, data, check_crcs=check_crcs)
    count = whole + rng.choice([0, 0, 0, 1, -1])
    for name in ("decode_values", "decode_keys", "decode_headers", "decode_numbers"):
        found = outcome(getattr(_compiled, name), data, count)
        assert found == outcome(getattr(_reference, name), data, count)
