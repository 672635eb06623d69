"""The map of keys and the sieve: both implementations beside each other, and beside a dict."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest

from kdist.errors import CorruptRecords
from kdist.records import _compiled_cleaning, _compiled_key_map, _reference_cleaning
from kdist.records._reference_cleaning import empty_batch, rebuilt_batch
from kdist.records.batch import HEADER_SIZE, crc_fault, header_fault, read_header
from kdist.records.build import build_batch, read_batch, read_body, read_records
from kdist.records.compression import Codec
from kdist.records.record import Record

BOTH = [_reference_cleaning, _compiled_cleaning]
MAPS = {
    _reference_cleaning: _reference_cleaning.KeyMap,
    _compiled_cleaning: _compiled_key_map.KeyMap,
}
SECRET = bytes(range(16))
NOW_MS = 1_700_000_000_000
FAR = 1 << 60

# SipHash-2-4 with 128 bits, key 00 01 … 0f, of no byte and of one: as its authors published them.
VECTORS = [
    (0, "a3817f04ba25a8e66df67214c7550293"),
    (1, "da87c1d86b99af44347659119b22fc45"),
]


@pytest.mark.parametrize(("size", "expected"), VECTORS)
def test_keys_are_hashed_as_siphash_publishes(size: int, expected: str) -> None:
    assert _compiled_key_map.hash_of(bytes(range(size)), SECRET).hex() == expected


@pytest.mark.parametrize("size", range(40))
def test_each_byte_of_a_key_and_of_the_secret_counts(size: int) -> None:
    key = bytes(range(size))
    others = [key[:at] + bytes([key[at] ^ 1]) + key[at + 1 :] for at in range(size)]
    hashes = {_compiled_key_map.hash_of(each, SECRET) for each in [key, key + b"\0", *others]}
    assert len(hashes) == size + 2
    assert _compiled_key_map.hash_of(key, bytes(16)) not in hashes


@pytest.mark.parametrize("code", BOTH)
def test_a_map_is_a_dict_until_it_is_full(code: ModuleType) -> None:
    key_map, expected = MAPS[code](1000, SECRET), dict[bytes, int]()
    rng = random.Random(1)
    for offset in range(3000):
        key = b"%d" % rng.randrange(850)
        assert key_map.put(key, offset)
        expected[key] = offset
    assert len(key_map) == len(expected)
    assert all(key_map.get(b"%d" % n) == expected.get(b"%d" % n, -1) for n in range(2000))
    assert not key_map.is_full


@pytest.mark.parametrize("code", BOTH)
@pytest.mark.parametrize("slots", [1, 2, 3, 10, 100])
def test_a_full_map_refuses_new_keys_and_takes_known_ones(code: ModuleType, slots: int) -> None:
    key_map = MAPS[code](slots, SECRET)
    taken = 0
    while key_map.put(b"%d" % taken, taken):
        taken += 1
    assert taken == key_map.limit == max(int(slots * 0.9), 1)
    assert key_map.is_full
    assert key_map.put(b"0", 500)
    assert key_map.get(b"0") == 500
    assert key_map.get(b"%d" % taken) == -1


def some_batch(rng: random.Random, base_offset: int, **fields: Any) -> bytearray:
    count = rng.choice([1, 1, 2, 7, 40])
    keys = [rng.choice([None, b"", b"%d" % rng.randrange(20)]) for _ in range(count)]
    values = [rng.choice([None, b"", b"v" * rng.randrange(300)]) for _ in range(count)]
    timestamps = [NOW_MS + rng.randrange(-(10**6), 10**6) for _ in range(count)]
    headers = [rng.choice([(), (("h", b"x"), ("", None))]) for _ in range(count)]
    if rng.random() < 0.3:
        fields |= {"producer_id": 7, "producer_epoch": 1, "base_sequence": base_offset}
    return build_batch(
        values,
        keys,
        headers,
        timestamps,
        timestamp_ms=NOW_MS,
        base_offset=base_offset,
        leader_epoch=3 + base_offset // 30,
        **fields,
    )


def some_batches(seed: int) -> tuple[bytes, list[int]]:
    rng, data, ends = random.Random(seed), b"", [0]
    for _ in range(rng.randrange(1, 12)):
        batch = some_batch(rng, ends[-1] + rng.choice([0, 0, 5]))
        data += batch
        ends.append(read_header(batch).next_offset)
    return data, ends


def all_records(data: bytes | bytearray) -> list[Record]:
    found, at = list[Record](), 0
    while at < len(data):
        found += read_batch(data, at)
        at += read_header(data, at).size
    return found


def sifted(code: ModuleType, data: bytes, mapped_end: int, **rules: Any) -> tuple[bytes, Any]:
    key_map = MAPS[code](1000, SECRET)
    at, end = code.map_batches(key_map, data, 0, 0, 0)
    assert at == len(data)
    arguments = {"now_ms": NOW_MS, "horizon_ms": NOW_MS + 500, "expires": True} | {
        "last_offsets": {},
        "latest_epoch": 9,
    }
    sieve = code.Sieve(key_map, min(mapped_end, end), **(arguments | rules))
    out = bytearray(3 * len(data))
    at, next_offset, size = sieve.sift(data, 0, 0, out, 0)
    assert (at, next_offset) == (len(data), end)
    counted = ("seen_records", "kept_records", "seen_batches", "kept_batches", "rewritten_batches")
    return bytes(out[:size]), [getattr(sieve, each) for each in counted]


@pytest.mark.parametrize("seed", range(60))
def test_both_sift_alike(seed: int) -> None:
    data, ends = some_batches(seed)
    rng = random.Random(seed)
    mapped_end = rng.choice([FAR, rng.choice(ends), rng.randrange(ends[-1] + 1)])
    last_offsets = {7: rng.choice(ends) - 1}
    rules = {"last_offsets": last_offsets, "latest_epoch": rng.choice([0, 2, 5])}
    left = [sifted(code, data, mapped_end, **rules) for code in BOTH]
    assert left[0] == left[1]


@pytest.mark.parametrize("code", BOTH)
@pytest.mark.parametrize("seed", range(20))
def test_the_last_record_of_each_key_stays_as_it_was(code: ModuleType, seed: int) -> None:
    data, _ = some_batches(seed)
    before = all_records(data)
    last = {each.key: each.offset for each in before}
    left, (seen, kept, *_) = sifted(code, data, FAR)
    assert all_records(left) == [
        each for each in before if each.key is not None and last[each.key] == each.offset
    ]
    assert (seen, kept) == (len(before), len(all_records(left)))


@pytest.mark.parametrize("code", BOTH)
def test_a_batch_keeps_what_its_header_promises(code: ModuleType) -> None:
    first = build_batch(
        [b"1", b"2", b"3"],
        [b"a", b"b", b"a"],
        timestamps=[NOW_MS + 9, NOW_MS + 1, NOW_MS + 2],
        timestamp_ms=NOW_MS,
        base_offset=10,
        leader_epoch=4,
        producer_id=7,
        producer_epoch=2,
        base_sequence=30,
    )
    left, _ = sifted(code, bytes(first), FAR)
    before, header = read_header(first), read_header(left)
    assert header_fault(header, len(left)) is None
    assert crc_fault(left, 0, header) is None
    assert header._replace(crc=0, batch_length=0) == before._replace(
        crc=0, batch_length=0, record_count=2, max_timestamp=NOW_MS + 2
    )
    assert [(each.offset, each.timestamp) for each in read_batch(left)] == [
        (11, NOW_MS + 1),
        (12, NOW_MS + 2),
    ]


@pytest.mark.parametrize("code", BOTH)
def test_a_producers_last_batch_stays_without_records(code: ModuleType) -> None:
    fields = {"producer_id": 7, "producer_epoch": 0}
    first = build_batch([b"1"], [b"a"], timestamp_ms=NOW_MS, base_sequence=0, **fields)
    last = build_batch(
        [b"2"], [b"a"], timestamp_ms=NOW_MS, base_offset=1, base_sequence=1, **fields
    )
    other = build_batch([b"3"], [b"a"], timestamp_ms=NOW_MS, base_offset=2)
    data = bytes(first + last + other)
    left, counted = sifted(code, data, FAR, last_offsets={7: 1})
    header = read_header(left)
    assert (header.record_count, header.base_offset, header.last_sequence) == (0, 1, 1)
    assert header_fault(header, len(left)) is None
    assert crc_fault(left, 0, header) is None
    assert left[header.size :] == bytes(other)
    assert counted == [3, 1, 3, 2, 1]
    again, _ = sifted(code, left, FAR, last_offsets={7: 1})
    assert again == left
    gone, _ = sifted(code, left, FAR, last_offsets={7: 50})
    assert gone == bytes(other)


@pytest.mark.parametrize("code", BOTH)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_the_first_batch_of_each_epoch_stays_without_records(
    code: ModuleType, codec: Codec
) -> None:
    batches = [
        build_batch(
            [b"1"], [b"a"], timestamp_ms=NOW_MS, base_offset=at, leader_epoch=epoch, codec=codec
        )
        for at, epoch in enumerate([-1, 0, 2, 2, 3, 3, 3])
    ]
    key_map = MAPS[code](10, SECRET)
    assert key_map.put(b"a", 6)
    left = bytearray()
    latest_epoch, in_parts = 0, [batches[:3], batches[3:5], batches[5:]]
    for part in in_parts:
        sieve = code.Sieve(key_map, FAR, NOW_MS, NOW_MS, True, {}, latest_epoch)
        for header, batch in ((read_header(each), each) for each in part):
            if codec is Codec.NONE:
                out = bytearray(3 * len(batch))
                left += out[: sieve.sift(bytes(batch), 0, 0, out, 0)[2]]
            else:
                body = sieve.sift_body(read_body(batch, 0, header), header)
                left += sieve.batch_left(header, batch, body) or b""
        latest_epoch = sieve.latest_epoch
    told, at = [], 0
    while at < len(left):
        header = read_header(left, at)
        assert crc_fault(left, at, header) is None
        told.append((header.partition_leader_epoch, header.base_offset, header.record_count))
        at += header.size
    assert told == [(2, 2, 0), (3, 4, 0), (3, 6, 1)]
    assert latest_epoch == 3


@pytest.mark.parametrize("code", BOTH)
def test_a_tombstone_gets_a_horizon_and_goes_once_that_is_past(code: ModuleType) -> None:
    batch = build_batch(
        [None, b"x"],
        [b"a", b"b"],
        timestamps=[NOW_MS - 7, NOW_MS + 5],
        timestamp_ms=NOW_MS,
    )
    left, _ = sifted(code, bytes(batch), FAR, horizon_ms=NOW_MS + 1000)
    header = read_header(left)
    assert header.has_delete_horizon
    assert header.base_timestamp == NOW_MS + 1000
    assert header.max_timestamp == NOW_MS + 5
    assert all_records(left) == all_records(batch)
    for now_ms, expires, is_there in (
        (NOW_MS + 999, True, True),
        (NOW_MS + 1000, False, True),
        (NOW_MS + 1000, True, False),
    ):
        later, _ = sifted(code, left, FAR, now_ms=now_ms, horizon_ms=FAR, expires=expires)
        assert all_records(later) == all_records(batch)[0 if is_there else 1 :]
        assert read_header(later).base_timestamp == NOW_MS + 1000


@pytest.mark.parametrize("code", BOTH)
def test_a_tombstone_that_is_not_mapped_gets_no_horizon_yet(code: ModuleType) -> None:
    batch = build_batch([b"x", None], [b"b", b"a"], timestamp_ms=NOW_MS)
    left, _ = sifted(code, bytes(batch), 1)
    assert left == bytes(batch)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_both_sift_a_compressed_batchs_body_alike(codec: Codec) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        header = read_header(batch := some_batch(rng, 5))
        body = bytes(batch[HEADER_SIZE:])
        results = []
        for code in BOTH:
            key_map = MAPS[code](1000, SECRET)
            assert code.map_body(key_map, body, header.record_count, 5, 0) is None
            sieve = code.Sieve(key_map, rng.randrange(1) + FAR, NOW_MS, NOW_MS + 5, True, {}, 0)
            results.append(sieve.sift_body(body, header))
        assert results[0] == results[1]
        if results[0] is not None and results[0].record_count:
            rebuilt = rebuilt_batch(header, results[0], results[0].body)
            assert {each.offset for each in read_batch(rebuilt)} <= {
                each.offset for each in read_records(batch, 0, header)
            }


@pytest.mark.parametrize("code", BOTH)
@pytest.mark.parametrize("damage", ["cut", "crc", "codec", "offset"])
def test_they_stop_in_front_of_what_is_not_plain(code: ModuleType, damage: str) -> None:
    good = build_batch([b"1"], [b"a"], timestamp_ms=NOW_MS)
    bad = build_batch(
        [b"2"],
        [b"b"],
        timestamp_ms=NOW_MS,
        base_offset=0 if damage == "offset" else 1,
        codec=Codec.GZIP if damage == "codec" else Codec.NONE,
    )
    if damage == "crc":
        bad[-1] ^= 1
    data = bytes(good + bad)[: -1 if damage == "cut" else None]
    key_map = MAPS[code](10, SECRET)
    assert code.map_batches(key_map, data, 0, 0, 0) == (len(good), 1)
    sieve = code.Sieve(key_map, FAR, NOW_MS, NOW_MS, True, {}, 0)
    out = bytearray(3 * len(data))
    assert sieve.sift(data, 0, 0, out, 0) == (len(good), 1, len(good))


@pytest.mark.parametrize("code", BOTH)
def test_a_map_that_is_full_says_where_to_begin_the_next_time(code: ModuleType) -> None:
    batches = [
        build_batch([b"1"] * 4, [b"%d" % (first + n) for n in range(4)], timestamp_ms=NOW_MS,
                    base_offset=first) for first in (0, 4, 8)
    ]  # fmt: skip
    data = bytes(batches[0] + batches[1] + batches[2])
    key_map = MAPS[code](7, SECRET)
    assert key_map.limit == 6
    assert code.map_batches(key_map, data, 0, 0, 0)[1] == 6
    assert key_map.is_full
    again = MAPS[code](7, SECRET)
    assert code.map_batches(again, data, 0, 0, 6) == (len(data), 12)


@pytest.mark.parametrize("code", BOTH)
def test_a_body_that_breaks_the_format_is_refused(code: ModuleType) -> None:
    body = bytes(build_batch([b"1"], [b"a"], timestamp_ms=NOW_MS)[HEADER_SIZE:])
    for broken in (body[:-1], body + b"\0", b"\x02" + body[1:]):
        with pytest.raises(CorruptRecords):
            code.map_body(MAPS[code](10, SECRET), broken, 1, 0, 0)
    with pytest.raises(CorruptRecords):
        code.map_body(MAPS[code](10, SECRET), body, 5, 0, 0)


def test_an_empty_batch_has_no_codec_and_no_horizon() -> None:
    batch = build_batch([b"1"], [b"a"], timestamp_ms=NOW_MS, codec=Codec.LZ4)
    header = read_header(empty_batch(read_header(batch)))
    assert (header.codec, header.record_count, header.size) == (0, 0, HEADER_SIZE)
    assert (header.base_timestamp, header.max_timestamp) == (-1, NOW_MS)
