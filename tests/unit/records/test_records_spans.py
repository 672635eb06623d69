"""Scanning many batches at once: both implementations agree, and with scanning each batch alone."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.records import _compiled_spans, _reference_spans
from kdist.records._reference_spans import BatchSpan
from kdist.records.batch import HEADER_SIZE, BatchHeader, iter_headers, read_header, seal
from kdist.records.build import build_batch
from kdist.records.compression import Codec
from kdist.records.record import INT64_MAX
from tests.written_records import with_fields

BOTH = pytest.mark.parametrize(
    "codec", [_reference_spans, _compiled_spans], ids=["reference", "compiled"]
)
NOW_MS = 1_700_000_000_000


def numbered(first: int, count: int, **options: Any) -> bytearray:
    values = [b"%d" % number for number in range(first, first + count)]
    return build_batch(values, base_offset=first, **{"timestamp_ms": NOW_MS + first} | options)


def find(codec: ModuleType, data: bytes | bytearray, **options: int) -> BatchSpan | None:
    """With every CRC checked, unless `trusted_offset` says otherwise, and no other limits."""
    found: BatchSpan | None = codec.find_span(
        memoryview(data),
        options.get("position", 0),
        options.get("end", len(data)),
        options.get("offset_before", -1),
        options.get("offset_max", INT64_MAX),
        options.get("trusted_offset", 0),
        options.get("room_bytes", 1 << 40),
    )
    assert type(found) in (BatchSpan, type(None))
    return found


@BOTH
def test_batches_in_a_row_are_one_span(codec: ModuleType) -> None:
    one, two, three = (
        numbered(5, 2, leader_epoch=3),
        numbered(7, 1, leader_epoch=3, timestamp_ms=NOW_MS + 90, codec=Codec.GZIP),
        numbered(8, 4, leader_epoch=3, producer_id=0, base_sequence=0),
    )
    data = one + two + three
    whole = BatchSpan(len(data), len(three), 5, 11, 3, 3, 7, NOW_MS + 90, 7, True)
    assert find(codec, data) == whole
    assert find(codec, b"before" + data, position=6) == whole
    first_two = BatchSpan(len(one + two), len(two), 5, 7, 3, 2, 3, NOW_MS + 90, 7, False)
    assert find(codec, one + two) == find(codec, data[:-1]) == first_two
    assert find(codec, data, end=len(data) - 1) == first_two
    assert find(codec, data, offset_max=10) == first_two
    assert find(codec, data, room_bytes=len(one)) == whole
    assert find(codec, data, room_bytes=len(one) - 1) == first_two
    for room_bytes in (0, -1, -(1 << 40)):
        found = find(codec, data, room_bytes=room_bytes)
        assert found is not None
        assert found.size == (len(one + two) if room_bytes == 0 else len(one))


@BOTH
def test_no_batches_are_no_span(codec: ModuleType) -> None:
    data = numbered(5, 2)
    assert find(codec, b"") is find(codec, data, position=len(data)) is None
    assert find(codec, data, position=len(data) + 100, end=1000) is None
    assert find(codec, data, offset_before=5) is find(codec, data, offset_max=5) is None


@BOTH
@pytest.mark.parametrize(
    "other",
    [
        numbered(3, 1),
        numbered(1, 1),
        numbered(2, 1, leader_epoch=5),
        with_fields(numbered(2, 1), attributes=5),
        with_fields(numbered(2, 1), attributes=-1),
        with_fields(numbered(2, 1), record_count=2),
        with_fields(numbered(2, 1), record_count=-1),
        with_fields(numbered(2, 1), record_count=0, last_offset_delta=-1),
        with_fields(numbered(2, 1), record_count=9, last_offset_delta=8),
        with_fields(numbered(2, 1), magic=-1),
        with_fields(numbered(2, 1), magic=0),
        with_fields(numbered(2, 1), magic=1),
        with_fields(numbered(2, 1), magic=3),
        with_fields(numbered(2, 1), batch_length=40),
        with_fields(numbered(2, 1), batch_length=-1),
        with_fields(numbered(2, 1), batch_length=(1 << 31) - 1),
        with_fields(numbered(2, 1), crc=1),
    ],
)
def test_a_batch_that_does_not_continue_the_span_ends_it(
    codec: ModuleType, other: bytearray
) -> None:
    one = numbered(0, 2)
    assert find(codec, one + other + numbered(3, 1)) == find(codec, one)


@BOTH
@pytest.mark.parametrize(
    "fields",
    [
        {"attributes": 1 << 3},
        {"attributes": 1 << 4},
        {"attributes": 1 << 5},
        {"attributes": 4},
        {"attributes": -1 << 15},
        {"record_count": 0, "last_offset_delta": 0},
        {"record_count": 1, "last_offset_delta": (1 << 31) - 1},
        {"record_count": 99, "last_offset_delta": 98, "attributes": 2},
        {"max_timestamp": -(1 << 63)},
        {"producer_id": INT64_MAX},
    ],
)
def test_gaps_of_compaction_and_markers_do_not_end_the_span(
    codec: ModuleType, fields: dict[str, int]
) -> None:
    found = find(codec, numbered(0, 2) + with_fields(numbered(2, 1), **fields))
    assert found is not None
    assert found.last_offset == 2 + fields.get("last_offset_delta", 0)


@BOTH
def test_batches_below_the_trusted_offset_need_only_their_header(codec: ModuleType) -> None:
    one, two = with_fields(numbered(0, 2), crc=1), with_fields(numbered(2, 2), crc=1)
    for trusted_offset in range(6):
        found = find(codec, one + two, trusted_offset=trusted_offset)
        trusted_size = (0, 0, len(one), len(one), len(one + two), len(one + two))[trusted_offset]
        assert (found.size if found else 0) == trusted_size
    cut, end = (one + two)[: len(one) + HEADER_SIZE], len(one + two)
    assert find(codec, cut, end=end, trusted_offset=4) == find(codec, one + two, trusted_offset=4)
    assert find(codec, cut[:-1], end=end, trusted_offset=4) == find(codec, one, trusted_offset=2)


@BOTH
def test_a_span_ends_with_the_last_offset_of_all(codec: ModuleType) -> None:
    data = b"".join(
        with_fields(numbered(0, 1), base_offset=at) for at in (INT64_MAX - 1, INT64_MAX, -1)
    )
    found = find(codec, data)
    assert found is not None
    assert (found.base_offset, found.last_offset) == (INT64_MAX - 1, INT64_MAX)
    beyond = with_fields(numbered(0, 2), base_offset=INT64_MAX)
    assert find(codec, beyond) is None


@BOTH
def test_headers_with_producer_ids_are_returned_with_their_positions(codec: ModuleType) -> None:
    batches = [
        numbered(0, 1),
        numbered(1, 2, producer_id=7, producer_epoch=3, base_sequence=9),
        numbered(3, 1, producer_id=INT64_MAX, is_transactional=True, is_control=True),
        numbered(4, 1),
    ]
    data = b"".join(batches)
    found = codec.producer_headers(memoryview(data), len(data), 1)
    assert found == [(at, header) for at, header in iter_headers(data) if header.producer_id >= 0]
    assert {type(header) for _, header in found} == {BatchHeader}
    assert codec.producer_headers(memoryview(data), 0, 1) == []


@BOTH
def test_of_a_producers_plain_batches_only_the_last_are_returned(codec: ModuleType) -> None:
    kinds: list[dict[str, Any]] = [
        {"producer_id": 1},
        {"producer_id": 1, "is_transactional": True},
        {"producer_id": 2},
        {"producer_id": 1},
        {"producer_id": 1, "is_control": True},
        {"producer_id": 1, "producer_epoch": 1},
        {"producer_id": 1},
        {"producer_id": 1},
        {"producer_id": 1, "is_transactional": True, "is_control": True},
    ]
    data = b"".join(
        numbered(at, 1, base_sequence=0, **{"producer_epoch": 0} | kind)
        for at, kind in enumerate(kinds)
    )
    found = codec.producer_headers(memoryview(data), len(data), 2)
    assert [header.base_offset for _, header in found] == [1, 2, 4, 6, 7, 8]


def damaged(rng: random.Random) -> bytearray:
    """Some batches with some bytes changed."""
    data, offset = bytearray(), 0
    for _ in range(rng.randrange(1, 6)):
        count = rng.randrange(1, 4)
        data += numbered(offset, count, producer_id=rng.choice([-1, -1, 5]), base_sequence=0)
        offset += count
    positions = [at for at, _ in iter_headers(data)]
    for _ in range(rng.randrange(3)):
        start = rng.choice(positions)
        data[start + rng.randrange(HEADER_SIZE + 4)] = rng.choice(
            [0, 1, 2, 127, 128, 255, rng.randrange(256)]
        )
        if rng.random() < 0.7:  # as if it had been sent so
            size = read_header(data, start).size
            if HEADER_SIZE <= size <= len(data) - start:
                with memoryview(data)[start : start + size] as view:
                    seal(view, 0, size)
    del data[rng.choice([len(data), len(data) - 1, rng.randrange(len(data))]) :]
    return data


@given(st.integers(0, 1 << 32))
def test_both_find_the_same_in_damaged_batches(seed: int) -> None:
    rng = random.Random(seed)
    data = damaged(rng)
    options = {
        "position": rng.choice([0, 0, 0, rng.randrange(len(data) + 2)]),
        "end": len(data) + rng.choice([0, 0, -1, 100]),
        "offset_before": rng.choice([-1, -1, 0, 3]),
        "offset_max": rng.choice([INT64_MAX, INT64_MAX, 2, 5]),
        "trusted_offset": rng.choice([0, 0, 2, 4, INT64_MAX]),
        "room_bytes": rng.choice([1 << 40, 1 << 40, -1, 0, 100]),
    }
    found = find(_reference_spans, data, **options)
    assert find(_compiled_spans, data, **options) == found
    if found is not None:
        view = memoryview(data)[options["position"] :]
        headers = _reference_spans.producer_headers(view, found.size, 1)
        assert _compiled_spans.producer_headers(view, found.size, 1) == headers
        assert bool(headers) is found.has_producers
