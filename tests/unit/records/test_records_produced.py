"""A produced batch: the same expectations for both implementations of its functions."""

from __future__ import annotations

import random
import runpy
import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist import records
from kdist.model import NO_TIMESTAMP
from kdist.records import _compiled_produced, _reference_produced
from kdist.records.batch import (
    CODEC_MAX,
    HEADER,
    HEADER_SIZE,
    TRUSTED_SPAN_MS,
    Batch,
    BatchHeader,
    header_fault,
    producer_fault,
    read_header,
    seal,
)
from kdist.records.build import build_batch
from kdist.records.compression import Codec
from kdist.wire import pure
from kdist.wire.varint import put_unsigned

BOTH = pytest.mark.parametrize(
    "codec", [_reference_produced, _compiled_produced], ids=["reference", "compiled"]
)
BEFORE = b"what is before them"
NOW_MS = 1_700_000_000_000


def frame_of(data: bytes | bytearray, is_flexible: bool, tags: bytes = bytes(3)) -> memoryview:
    """The end of a Produce, behind some other bytes."""
    frame = bytearray(BEFORE)
    if is_flexible:
        put_unsigned(frame, len(data) + 1)
        return memoryview(frame + data + tags)
    return memoryview(frame + len(data).to_bytes(4, "big") + data)


def find(codec: ModuleType, frame: memoryview, is_flexible: bool) -> Batch | None:
    found: Batch | None = codec.find_batch(frame, len(BEFORE), is_flexible, 1 << 20, CODEC_MAX)
    return found


def with_fields(data: bytearray, **fields: int) -> bytearray:
    """The batch with other values in its header, and the right checksum."""
    header = read_header(data)._replace(**fields)
    changed = bytearray(HEADER.pack(*header) + data[HEADER_SIZE:])
    if "crc" not in fields:
        seal(changed, 0, len(changed))
    return changed


@BOTH
@pytest.mark.parametrize("is_flexible", [False, True])
@pytest.mark.parametrize("size", [0, 1, 40, 200, 20_000, 300_000])
def test_a_batch_is_found_behind_its_size(codec: ModuleType, size: int, is_flexible: bool) -> None:
    data = build_batch([bytes(size)], timestamp_ms=NOW_MS, producer_id=5, base_sequence=7)
    found = find(codec, frame_of(data, is_flexible), is_flexible)
    assert found == Batch(read_header(data), data)
    assert (type(found), type(found.header)) == (Batch, BatchHeader)


@BOTH
def test_a_batch_that_is_found_lies_within_the_frame(codec: ModuleType) -> None:
    frame = frame_of(build_batch([b"v"], timestamp_ms=NOW_MS), True)
    found = find(codec, frame, True)
    assert found is not None
    codec.assign([found], 9, 3)
    assert read_header(frame, len(BEFORE) + 1)[:3] == (9, len(found.data) - 12, 3)


@BOTH
@pytest.mark.parametrize("tags", [b"", b"\0\0", b"\0\0\1", b"\1\0\0", b"\0\1\0", bytes(4)])
def test_a_batch_followed_by_anything_but_empty_tags_is_declined(
    codec: ModuleType, tags: bytes
) -> None:
    data = build_batch([b"v"], timestamp_ms=NOW_MS)
    assert find(codec, frame_of(data, True, tags), True) is None


@BOTH
@pytest.mark.parametrize("is_flexible", [False, True])
def test_a_frame_cut_anywhere_is_declined(codec: ModuleType, is_flexible: bool) -> None:
    frame = frame_of(build_batch([b"v"], timestamp_ms=NOW_MS), is_flexible)
    for end in range(len(frame)):
        assert find(codec, frame[:end], is_flexible) is None


@BOTH
def test_an_endless_size_is_declined(codec: ModuleType) -> None:
    assert find(codec, memoryview(bytearray(BEFORE + b"\xff" * 20 + bytes(3))), True) is None


@BOTH
def test_a_size_of_more_than_five_bytes_is_declined(codec: ModuleType) -> None:
    """The decoder refuses it. The reference once accepted it, and it could be decoded later."""
    data = build_batch([b"v"], timestamp_ms=NOW_MS)
    for zeros in range(8):
        size = bytes([len(data) + 1 | 0x80, *[0x80] * zeros, 0])
        found = find(codec, memoryview(bytearray(BEFORE + size + data + bytes(3))), True)
        assert (found is not None) is (len(size) <= 5)


@BOTH
@pytest.mark.parametrize(
    "fields",
    [
        {"base_offset": 1},
        {"batch_length": 60},
        {"magic": 1},
        {"crc": 1},
        {"attributes": -1},
        {"attributes": CODEC_MAX + 1},
        {"attributes": 1 << 4},
        {"attributes": 1 << 5},
        {"last_offset_delta": 1},
        {"last_offset_delta": -1, "record_count": 0},
        {"last_offset_delta": 99, "record_count": 100},
        {"max_timestamp": NOW_MS - 1},
        {"max_timestamp": NO_TIMESTAMP},
        {"record_count": -1},
        {"producer_id": 1, "base_sequence": -1},
    ],
)
def test_an_unusual_header_is_declined(codec: ModuleType, fields: dict[str, int]) -> None:
    data = build_batch([b"v" * 20], timestamp_ms=NOW_MS)
    assert codec.check_batch(memoryview(data), 0, len(data), 1 << 20, CODEC_MAX) is not None
    changed = with_fields(data, **fields)
    assert codec.check_batch(memoryview(changed), 0, len(changed), 1 << 20, CODEC_MAX) is None


@BOTH
def test_the_limits_are_kept(codec: ModuleType) -> None:
    data = with_fields(build_batch([b"v" * 20], timestamp_ms=NOW_MS), attributes=4)
    size = len(data)
    view = memoryview(data)
    assert codec.check_batch(view, 0, size, size, 4) is not None
    assert codec.check_batch(view, 0, size, size - 1, 4) is None
    assert codec.check_batch(view, 0, size, size, 3) is None
    assert codec.check_batch(view.toreadonly(), 0, size, size, 4) is None


@given(st.integers(0, 1 << 32), st.booleans())
def test_both_find_the_same_in_damaged_frames(seed: int, is_flexible: bool) -> None:
    rng = random.Random(seed)
    data = build_batch([b"v"] * rng.randrange(1, 4), timestamp_ms=NOW_MS)
    frame = frame_of(data, is_flexible)
    for _ in range(rng.randrange(3)):
        frame[rng.randrange(len(BEFORE), len(frame))] = rng.randrange(256)
    if rng.random() < 0.5:
        start = len(frame) - len(data) - (3 if is_flexible else 0)
        seal(frame, start, len(data))
    found = find(_compiled_produced, frame, is_flexible)
    assert found == find(_reference_produced, frame, is_flexible)


COUNTS = [0, 1, 2, 3, 4, 5, 100, 3000, 9000, 18_725, (1 << 31) - 1]
LIMITS = [-1, 0, 1, NOW_MS - 1, NOW_MS, NOW_MS + TRUSTED_SPAN_MS, NOW_MS + TRUSTED_SPAN_MS + 1]
WIDEST = [-(1 << 63), (1 << 63) - 1, (1 << 62) - 1, 1 << 62]


@given(
    st.integers(0, 4),
    st.sampled_from(COUNTS),
    st.sampled_from([-1, 0, 1]),
    st.sampled_from([0, 8, 16, 32, 64]),
    st.sampled_from([-1, 0, NOW_MS]) | st.sampled_from(WIDEST),
    st.sampled_from(LIMITS + WIDEST),
    st.sampled_from([(-1, -1), (5, -1), (5, 0), (-1, 7)]),
    st.sampled_from([0, 0, 0, 1, -1]),
)
def test_both_judge_any_header_alike(
    codec: int,
    count: int,
    gap: int,
    bits: int,
    base_timestamp: int,
    max_timestamp: int,
    producer: tuple[int, int],
    base_offset: int,
) -> None:
    data = build_batch([b"v" * 20] * 3, timestamp_ms=NOW_MS, codec=Codec(codec))
    changed = with_fields(
        data,
        attributes=codec | bits,
        record_count=count,
        last_offset_delta=max(-1, min(count - 1 + gap, (1 << 31) - 1)),
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer[0],
        base_sequence=producer[1],
        base_offset=base_offset,
    )
    found = [
        each.check_batch(memoryview(changed), 0, len(changed), 1 << 20, CODEC_MAX)
        for each in (_reference_produced, _compiled_produced)
    ]
    assert found[0] == found[1]
    header = read_header(changed)
    assert found[0] is None or (
        header_fault(header, len(changed)) is None and producer_fault(header) is None
    )


@BOTH
@pytest.mark.parametrize("count", [(1 << 31) - 1, 1 << 20])
@pytest.mark.parametrize("attributes", range(5))
def test_more_records_than_the_bytes_can_hold_are_declined(
    codec: ModuleType, count: int, attributes: int
) -> None:
    data = build_batch([b"v"], timestamp_ms=NOW_MS, codec=Codec(attributes))
    changed = with_fields(data, record_count=count, last_offset_delta=count - 1)
    assert codec.check_batch(memoryview(changed), 0, len(changed), 1 << 20, CODEC_MAX) is None


@BOTH
@pytest.mark.parametrize("attributes", range(5))
def test_a_max_timestamp_that_the_records_cannot_have_is_declined(
    codec: ModuleType, attributes: int
) -> None:
    data = build_batch([b"v"], timestamp_ms=NOW_MS, codec=Codec(attributes))
    for ahead_ms, is_taken in ((0, True), (1, attributes > 0), (TRUSTED_SPAN_MS + 1, False)):
        changed = with_fields(data, max_timestamp=NOW_MS + ahead_ms)
        found = codec.check_batch(memoryview(changed), 0, len(changed), 1 << 20, CODEC_MAX)
        assert (found is not None) == is_taken


headers = st.builds(
    lambda delta, count, timestamp, producer: BatchHeader(
        0, 49, -1, 2, 0, 0, delta, 0, timestamp, producer, 0, 0, count
    ),
    st.integers(0, 1 << 31),
    st.integers(0, 1 << 31),
    st.integers(-1, 1 << 62),
    st.integers(-1, 3),
)


@given(st.lists(headers, max_size=8), st.integers(0, 1 << 40), st.integers(-1, (1 << 31) - 1))
def test_batches_are_measured_and_get_their_offsets(
    group: list[BatchHeader], offset: int, leader_epoch: int
) -> None:
    batches = [Batch(header, bytearray(HEADER_SIZE + at)) for at, header in enumerate(group)]
    totals = _reference_produced.batch_totals(batches)
    assert totals == (
        sum(HEADER_SIZE + at for at in range(len(group))),
        sum(header.last_offset_delta + 1 for header in group),
        sum(header.record_count for header in group),
        max([NO_TIMESTAMP, *(header.max_timestamp for header in group)]),
        any(header.producer_id >= 0 for header in group),
    )
    assert _compiled_produced.batch_totals(batches) == totals
    offsets = _reference_produced.assign(batches, offset, leader_epoch)
    reference = [bytes(data) for _, data in batches]
    assert all(read_header(data)[0] == at for at, data in zip(offsets, reference, strict=True))
    assert all(read_header(data)[2] == leader_epoch for data in reference)
    again = [Batch(header, bytearray(len(data))) for header, data in batches]
    assert _compiled_produced.assign(again, offset, leader_epoch) == offsets
    assert [bytes(data) for _, data in again] == reference


@BOTH
def test_a_batch_that_cannot_be_written_to_gets_no_offset(codec: ModuleType) -> None:
    data = bytes(build_batch([b"v"], timestamp_ms=NOW_MS))
    with pytest.raises(BufferError):
        codec.assign([Batch(read_header(data), data)], 0, 0)


@pytest.mark.parametrize(
    ("is_pure", "is_built", "serving"),
    [
        (False, True, _compiled_produced),
        (True, True, _reference_produced),
        (False, False, _reference_produced),
    ],
)
def test_the_compiled_functions_are_used_unless_pure_is_forced_or_not_built(
    monkeypatch: pytest.MonkeyPatch, is_pure: bool, is_built: bool, serving: ModuleType
) -> None:
    monkeypatch.setattr(pure, "IS_PURE", is_pure)
    monkeypatch.delitem(sys.modules, "kdist.records.codec", raising=False)
    if not is_built:
        monkeypatch.delattr(records, "_compiled_produced")
        monkeypatch.setitem(sys.modules, "kdist.records._compiled_produced", None)
    chosen = runpy.run_module("kdist.records.codec")
    for name in ("find_batch", "check_batch", "batch_totals", "assign"):
        assert chosen[name] is getattr(serving, name)
