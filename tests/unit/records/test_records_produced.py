"""A produced batch: the same expectations for both implementations of its functions."""

from __future__ import annotations

import random
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import ApiError, CorruptRecords, Error
from kdist.model import NO_TIMESTAMP
from kdist.records import _compiled_produced, _reference_produced
from kdist.records.batch import (
    HEADER_SIZE,
    TRUSTED_SPAN_MS,
    Batch,
    BatchHeader,
    read_header,
    seal,
)
from kdist.records.build import build_batch
from kdist.records.codec import decode_records
from kdist.records.compression import CODEC_MAX, Codec, compress
from kdist.records.record import INT64_MAX, INT64_MIN
from kdist.records.validate import Rules
from kdist.wire.primitives import put_unsigned
from tests.examples import examples
from tests.refusals import refused
from tests.written_records import validate, with_fields

BOTH = pytest.mark.parametrize(
    "codec", [_reference_produced, _compiled_produced], ids=["reference", "compiled"]
)
BEFORE = b"what is before them"
NOW_MS = 1_700_000_000_000
RULES = Rules(message_bytes_max=1 << 20)


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


# --- the records --------------------------------------------------------------------------------

buffers = st.none() | st.binary(max_size=80)
header_lists = st.lists(st.tuples(st.text(max_size=5), buffers), max_size=3)
times = st.integers(NOW_MS - (1 << 40), NOW_MS + 100)
tables = st.lists(st.tuples(buffers, buffers, header_lists, times), min_size=1, max_size=70)


def batch_of(*values: bytes) -> bytearray:
    return build_batch(values, timestamp_ms=NOW_MS)


def can_be_read(body: bytes, count: int, base_timestamp: int) -> bool:
    try:
        found = decode_records(body, count, 0, base_timestamp)
    except CorruptRecords:
        return False
    return [each.offset for each in found] == list(range(count)) and count > 0


@examples(300)
@given(tables, st.data())
def test_both_find_what_a_decoding_finds(
    items: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]],
    data: st.DataObject,
) -> None:
    """In batches as they were built, and with a few bytes changed, added or cut off."""
    batch = build_batch(
        [value for value, _, _, _ in items],
        [key for _, key, _, _ in items],
        [each for _, _, each, _ in items],
        [at for _, _, _, at in items],
        timestamp_ms=NOW_MS,
    )
    count, base = len(items), read_header(batch).base_timestamp
    body = bytearray(batch[HEADER_SIZE:])
    assert _compiled_produced.body_summary(bytes(body), count, base)
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([len(body), len(body) - 1, len(body) + 1]))
    body = bytearray(bytes(body) + b"\0")[:end]
    count += data.draw(st.sampled_from([0, 0, 0, -1, 1]))
    base = data.draw(st.sampled_from([base, 0, -1, INT64_MAX, INT64_MIN]))
    expected = can_be_read(bytes(body), count, base)
    for each in (_reference_produced, _compiled_produced):
        assert (each.body_summary(body, count, base) is not None) == expected


@BOTH
def test_no_count_is_no_records(codec: ModuleType) -> None:
    body = bytes(batch_of(b"v")[HEADER_SIZE:])
    for count in (0, -1, 2, 1 << 31):
        assert codec.body_summary(body, count, NOW_MS) is None
    assert codec.body_summary(body, 1, NOW_MS) == (NOW_MS, True)


# What is wrong with a body, under a right checksum; the change is made to the second of three
# records of 20 bytes each: length, attributes, time, offset, no key, length of the value.
BROKEN = {
    "length": (0, 0x7E),
    "longer": (0, 28),
    "offset": (3, 8),
    "value": (5, 0x7E),
    "key": (4, 3),
}


def broken(at: int, byte: int) -> bytearray:
    batch = batch_of(b"a" * 7, b"b" * 7, b"c" * 7)
    size = (len(batch) - HEADER_SIZE) // 3
    batch[HEADER_SIZE + size + at] = byte
    seal(batch, 0, len(batch))
    return batch


@BOTH
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_record_under_a_right_checksum_is_refused(codec: ModuleType, name: str) -> None:
    batch = broken(*BROKEN[name])
    check = codec.check_batch
    assert check(memoryview(batch), 0, len(batch), 1 << 20, CODEC_MAX) is None
    whole = memoryview(batch_of(b"a" * 7, b"b" * 7, b"c" * 7))
    assert check(whole, 0, len(whole), 1 << 20, CODEC_MAX) is not None


@pytest.mark.parametrize("name", BROKEN)
def test_the_producer_is_told_what_is_wrong(name: str) -> None:
    with pytest.raises(ApiError) as raised:
        validate(broken(*BROKEN[name]), RULES, api_version=9, now_ms=NOW_MS)
    assert raised.value.error is Error.INVALID_RECORD  # nothing that sending it again could mend
    assert "batch" in raised.value.detail


def test_gaps_between_offset_deltas_are_refused() -> None:
    batch = batch_of(b"a" * 7, b"b" * 7)
    size = (len(batch) - HEADER_SIZE) // 2
    batch[HEADER_SIZE + size + 3] = 4  # the second record's delta is 2
    seal(batch, 0, len(batch))
    with refused(Error.INVALID_RECORD):
        validate(batch, RULES, api_version=9, now_ms=NOW_MS)


@pytest.mark.parametrize("codec", [each for each in Codec if each is not Codec.NONE])
@pytest.mark.parametrize("kind", ["records", "garbage"])
def test_what_is_compressed_is_looked_at_if_the_topic_asks_for_it(codec: Codec, kind: str) -> None:
    batch = broken(*BROKEN["value"])
    body = compress(codec, batch[HEADER_SIZE:]) if kind == "records" else b"garbage in a codec"
    packed = bytearray(batch[:HEADER_SIZE]) + body
    packed[8:12] = (len(packed) - 12).to_bytes(4, "big")
    packed[22] = codec
    seal(packed, 0, len(packed))
    assert validate(bytearray(packed), RULES, api_version=9, now_ms=NOW_MS)
    asking = Rules(message_bytes_max=1 << 20, validates_compressed=True)
    with refused(Error.INVALID_RECORD):
        validate(packed, asking, api_version=9, now_ms=NOW_MS)
    sound = build_batch([b"v"] * 9, timestamp_ms=NOW_MS, codec=codec)
    assert validate(sound, asking, api_version=9, now_ms=NOW_MS)


# --- what the log does with it ------------------------------------------------------------------

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
