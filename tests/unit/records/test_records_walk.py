"""Whether a produced batch's records can be read: both implementations, against a decoding."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import ApiError, CorruptRecords, Error
from kdist.records import _compiled_produced, _compiled_walk, _reference_produced, _reference_walk
from kdist.records.batch import CODEC_MAX, HEADER_SIZE, read_header, seal
from kdist.records.build import build_batch
from kdist.records.codec import decode_records
from kdist.records.compression import Codec, compress
from kdist.records.record import INT64_MAX, INT64_MIN
from kdist.records.validate import Rules, validate
from tests.examples import examples

NOW_MS = 1_700_000_000_000
RULES = Rules(message_bytes_max=1 << 20)
BOTH = pytest.mark.parametrize(
    "walk", [_reference_walk, _compiled_walk], ids=["reference", "compiled"]
)
PRODUCED = {_reference_walk: _reference_produced, _compiled_walk: _compiled_produced}

buffers = st.none() | st.binary(max_size=80)
headers = st.lists(st.tuples(st.text(max_size=5), buffers), max_size=3)
times = st.integers(NOW_MS - (1 << 40), NOW_MS + 100)
records = st.lists(st.tuples(buffers, buffers, headers, times), min_size=1, max_size=70)


def batch_of(*values: bytes) -> bytearray:
    return build_batch(values, timestamp_ms=NOW_MS)


def can_be_read(body: bytes, count: int, base_timestamp: int) -> bool:
    try:
        found = decode_records(body, count, 0, base_timestamp)
    except CorruptRecords:
        return False
    return [each.offset for each in found] == list(range(count)) and count > 0


@examples(300)
@given(records, st.data())
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
    assert _compiled_walk.are_whole(bytes(body), count, base)
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([len(body), len(body) - 1, len(body) + 1]))
    body = bytearray(bytes(body) + b"\0")[:end]
    count += data.draw(st.sampled_from([0, 0, 0, -1, 1]))
    base = data.draw(st.sampled_from([base, 0, -1, INT64_MAX, INT64_MIN]))
    expected = can_be_read(bytes(body), count, base)
    for walk in (_reference_walk, _compiled_walk):
        assert walk.are_whole(body, count, base) == expected


@BOTH
def test_no_count_is_no_records(walk: ModuleType) -> None:
    body = bytes(batch_of(b"v")[HEADER_SIZE:])
    for count in (0, -1, 2, 1 << 31):
        assert not walk.are_whole(body, count, NOW_MS)
    assert walk.are_whole(body, 1, NOW_MS)


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
def test_a_broken_record_under_a_right_checksum_is_refused(walk: ModuleType, name: str) -> None:
    batch = broken(*BROKEN[name])
    check = PRODUCED[walk].check_batch
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
    with pytest.raises(ApiError, match="do not count from 0 on"):
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
    with pytest.raises(ApiError) as raised:
        validate(packed, asking, api_version=9, now_ms=NOW_MS)
    assert raised.value.error is Error.INVALID_RECORD
    sound = build_batch([b"v"] * 9, timestamp_ms=NOW_MS, codec=codec)
    assert validate(sound, asking, api_version=9, now_ms=NOW_MS)
