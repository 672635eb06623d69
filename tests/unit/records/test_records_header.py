"""What a header may claim and compressed data hold, and records decoded into Arrow's columns."""

from __future__ import annotations

import gzip
import itertools
import random
import time
from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Any

import cramjam
import lz4.frame
import pyarrow
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kdist.client.consumer.arrow import binary
from kdist.errors import ApiError, CorruptRecords, Error
from kdist.records import (
    _compiled,
    _compiled_produced,
    _compiled_spans,
    _reference,
    _reference_produced,
    _reference_spans,
)
from kdist.records.batch import (
    HEADER_SIZE,
    RECORD_SIZE_MIN,
    TRUSTED_SPAN_MS,
    Attribute,
    TimestampType,
    has_likely_max_timestamp,
    header_fault,
    producer_fault,
    read_header,
)
from kdist.records.build import build_batch
from kdist.records.compression import CODEC_MAX, Codec, compress, content_bound, decompress
from kdist.records.compression import lz4 as kdist_lz4
from kdist.records.compression import zstd as kdist_zstd
from kdist.records.record import BATCH_BYTES_MAX, INT64_MAX, INT64_MIN, BinaryColumn
from kdist.records.validate import Rules
from tests.examples import examples, first_of
from tests.written_records import validate, with_fields

NOW_MS = 1_700_000_000_000
SIZE_MAX = 1 << 20
# With append time the max timestamp does not matter, and a compressed batch is not unpacked.
RULES = Rules(message_bytes_max=SIZE_MAX, timestamp_type=TimestampType.LOG_APPEND_TIME)
BATCHES = [build_batch([b"v" * 20] * 3, timestamp_ms=NOW_MS, codec=codec) for codec in Codec]
INT32_MAX = (1 << 31) - 1

USUAL = {"magic": 2, "base_offset": 0, "batch_length": 0, "attributes": 0, "gap": 0}
UNUSUAL = {
    "magic": [-128, 0, 1, 3, 127],
    "base_offset": [-1, 1, INT64_MAX - INT32_MAX, INT64_MAX - 3, INT64_MAX - 2, INT64_MAX - 1],
    "batch_length": [-INT32_MAX, -1, 1, INT32_MAX],  # added to the right one
    "attributes": [1, 4, 8, 16, 32, 64, 128, -(1 << 15)],  # changed bits
    "gap": [-2, -1, 1, 2, 1 << 20],  # how many more offsets than records
}


def bounds_of(codec: int) -> list[int]:
    """Counts of records, at and near what the batch of this codec can hold."""
    packed_bytes = len(BATCHES[codec]) - HEADER_SIZE
    most = content_bound(codec, packed_bytes) // RECORD_SIZE_MIN
    return [most - 1, most, most + 1]


@st.composite
def batches(draw: st.DrawFn) -> bytearray:
    """Any batch with the right checksum: usual but for a field or two, or by chance."""
    fields = USUAL | {
        name: draw(st.sampled_from(UNUSUAL[name]))
        for name in draw(st.lists(st.sampled_from(list(UNUSUAL)), max_size=2, unique=True))
    }
    codec = draw(st.integers(0, CODEC_MAX))
    data = BATCHES[codec]
    if draw(st.integers(0, 9)) == 0:
        fields["batch_length"] = HEADER_SIZE - len(data) - draw(st.integers(0, 1))
    count = draw(st.sampled_from([3, 3, 3, 3, -1, 0, 1, 4, INT32_MAX, *bounds_of(codec)]))
    near = [NOW_MS - 1, NOW_MS + 1, NOW_MS + TRUSTED_SPAN_MS, NOW_MS + TRUSTED_SPAN_MS + 1]
    widest = [INT64_MIN, -1, 0, INT64_MAX >> 1, INT64_MAX]
    producer_id, base_sequence = draw(st.sampled_from([(-1, -1), (5, -1), (5, 0), (-1, 7)]))
    return with_fields(
        data,
        magic=fields["magic"],
        base_offset=fields["base_offset"],
        batch_length=min(len(data) - 12 + fields["batch_length"], INT32_MAX),
        attributes=codec ^ fields["attributes"],
        record_count=count,
        last_offset_delta=min(count - 1 + fields["gap"], INT32_MAX),
        base_timestamp=draw(st.sampled_from([NOW_MS, NOW_MS, NOW_MS, *widest])),
        max_timestamp=draw(st.sampled_from([NOW_MS, NOW_MS, *near, *widest])),
        producer_id=producer_id,
        base_sequence=base_sequence,
    )


Pack = Callable[[bytes], bytes]
Bound = Callable[[bytes], int | None]
MIB = 1 << 20
MUTATIONS = 200
# What the densest data of this size takes is a tenth of it. CPU time, so that load does not count.
CPU_S_MAX = 0.2


BOUNDED: dict[str, tuple[Pack, Bound]] = {
    "ours, lz4": (lambda data: compress(Codec.LZ4, data), kdist_lz4.bound),
    "linked blocks, lz4": (lambda data: bytes(cramjam.lz4.compress(data)), kdist_lz4.bound),
    "ours, zstd": (lambda data: compress(Codec.ZSTD, data), kdist_zstd.bound),
    "level 19, zstd": (lambda data: bytes(cramjam.zstd.compress(data, 19)), kdist_zstd.bound),
}


@st.composite
def compressible(draw: st.DrawFn) -> bytes:
    pieces = draw(st.lists(st.tuples(st.binary(max_size=50), st.integers(1, 9000)), max_size=4))
    return b"".join(piece * times for piece, times in pieces)


BOTH = pytest.mark.parametrize("codec", [_reference, _compiled], ids=["reference", "compiled"])
INTO = ("decode_values_into", "decode_keys_into")

buffers = st.none() | st.binary(max_size=200)
bodies = st.lists(st.lists(st.tuples(buffers, buffers), max_size=20), max_size=4)


def parts(column: BinaryColumn) -> tuple[Any, ...]:
    return bytes(column.data), column.ends, bytes(column.present), column.null_count


@examples(400)
@given(batches())
def test_a_produced_batch_is_taken_at_once_if_no_condition_forbids_it(data: bytearray) -> None:
    header, size = read_header(data), len(data)
    body = data[HEADER_SIZE:]
    summary = None
    if header_fault(header, size) is None and not header.codec:
        summary = _reference_produced.body_summary(body, header.record_count, header.base_timestamp)
    is_taken = (
        header.size == size
        and header_fault(header, size) is None
        and producer_fault(header) is None
        and has_likely_max_timestamp(header)
        and header.attributes == header.codec
        and (header.codec > 0 or summary == (header.max_timestamp, True))
    )
    for form in (_reference_produced, _compiled_produced):
        found = form.check_batch(memoryview(data), 0, size, SIZE_MAX, CODEC_MAX)
        assert found == ((header, data) if is_taken else None)


@examples(400)
@given(batches())
def test_a_producer_is_told_of_the_condition_that_its_batch_breaks(data: bytearray) -> None:
    header, size, body = read_header(data), len(data), data[HEADER_SIZE:]
    expected = None
    if header.magic != 2:
        expected = Error.INVALID_RECORD
    elif header.size != size:
        is_followed = HEADER_SIZE <= header.size < size
        expected = Error.INVALID_RECORD if is_followed else Error.CORRUPT_MESSAGE
    elif header_fault(header, size) or producer_fault(header, body):
        expected = Error.INVALID_RECORD
    elif header.is_transactional:
        expected = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif header.is_log_append_time:
        expected = Error.INVALID_TIMESTAMP
    elif not header.codec and not _reference_produced.body_summary(
        body, header.record_count, header.base_timestamp
    ):
        expected = Error.INVALID_RECORD
    try:
        validate(data, RULES, api_version=9, now_ms=NOW_MS)
        told = None
    except ApiError as error:
        told = error.error
    assert told == expected


@examples(400)
@given(batches(), st.integers(-1, 1))
def test_a_scan_takes_a_batch_if_its_header_has_no_fault(data: bytearray, more: int) -> None:
    header, end = read_header(data), len(data) + more
    view = memoryview(data + bytes(max(more, 0)))[:end]
    is_sound = header_fault(header, end) is None and header.last_offset <= INT64_MAX
    has_all = header.size == len(data)  # else its checksum is wrong
    for form, trusted_offset in itertools.product(
        (_reference_spans, _compiled_spans), (0, 1 << 62)
    ):
        found = form.find_span(view, 0, end, -1, INT64_MAX, trusted_offset, 0)
        is_trusted = header.last_offset < trusted_offset
        assert (found is not None) == (is_sound and (has_all or is_trusted))
    is_plain = header.attributes in (0, Attribute.LOG_APPEND_TIME) and header.is_dense
    for form in (_reference_spans, _compiled_spans):
        found = form.find_plain_span(view, 0, SIZE_MAX, False)
        is_readable = is_sound and is_plain and header.next_offset <= INT64_MAX
        expected = (header.size, header.record_count) if is_readable else (0, 0)
        assert found[1:] == expected


@pytest.mark.parametrize("writer", BOUNDED)
@given(data=compressible())
def test_no_frame_holds_more_than_its_bound(writer: str, data: bytes) -> None:
    write, bound_of = BOUNDED[writer]
    bound = bound_of(write(data))
    assert bound is not None
    assert bound >= len(data)


@pytest.mark.parametrize("writer", BOUNDED)
def test_the_bound_for_highly_compressible_data_is_close(writer: str) -> None:
    write, bound_of = BOUNDED[writer]
    bound = bound_of(write(bytes(10 * MIB)))
    assert bound is not None
    assert 10 * MIB <= bound <= 15 * MIB


def test_the_bounds_of_concatenated_frames_are_added() -> None:
    frames = compress(Codec.ZSTD, bytes(MIB)) + compress(Codec.ZSTD, b"abc" * 1000)
    bound = kdist_zstd.bound(frames)
    assert bound is not None
    assert bound >= MIB + 3000


@pytest.mark.parametrize("writer", BOUNDED)
@given(end=st.integers(0, 500))
def test_a_frame_that_is_cut_short_has_no_bound(writer: str, end: int) -> None:
    write, bound_of = BOUNDED[writer]
    frame = write(bytes(range(256)) * 3)
    cut = frame[: end % len(frame)]
    assert bound_of(cut) is None or not cut


@given(data=st.binary(max_size=100))
def test_garbage_has_a_bound_or_none_and_raises_nothing(data: bytes) -> None:
    for magic in (b"", b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd"):
        for bound in (kdist_lz4.bound(magic + data), kdist_zstd.bound(magic + data)):
            assert bound is None or bound >= 0


def test_too_many_blocks_are_not_counted() -> None:
    stored = (1 | 1 << 31).to_bytes(4, "little") + b"x"
    frame = bytes.fromhex("04224d18 60 40 82") + stored * 100_000 + bytes(4)
    assert kdist_lz4.bound(frame) is None
    assert decompress(Codec.LZ4, frame, MIB) == b"x" * 100_000


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("size", [100, 300_000, 20 * MIB])
def test_highly_compressible_data_is_decompressed_once(
    codec: Codec, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms: list[int] = []
    module = {Codec.LZ4: kdist_lz4, Codec.ZSTD: kdist_zstd}[codec]
    bounded = module.decompress_bounded

    def counting(into: Callable[..., int], *arguments: object) -> bytes:
        def decompress_into(data: object, output: memoryview) -> int:
            rooms.append(len(output))
            return into(data, output)

        return bounded(decompress_into, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "decompress_bounded", counting)
    packed = compress(codec, bytes(size))
    assert decompress(codec, packed, 1 << 28) == bytes(size)
    (room,) = rooms
    assert size <= room <= size + (size >> 1) + (1 << 17)


# --- damage -------------------------------------------------------------------------------------


def lz4_frame(**options: Any) -> Pack:
    return lambda data: bytes(lz4.frame.compress(data, **options))


WRITERS: list[tuple[Codec, Pack]] = [
    *((codec, lambda data, codec=codec: compress(codec, data)) for codec in list(Codec)[1:]),
    (Codec.GZIP, lambda data: gzip.compress(data[:999]) + gzip.compress(data[999:])),
    (Codec.SNAPPY, lambda data: bytes(snappy.compress(data))),
    (Codec.LZ4, lz4_frame(block_linked=True, content_checksum=True, store_size=True)),
    (Codec.LZ4, lz4_frame(block_size=7, block_checksum=True)),
    (Codec.ZSTD, lambda data: zstandard.ZstdCompressor(19, write_checksum=True).compress(data)),
    (
        Codec.ZSTD,
        lambda data: b"".join(map(zstandard.ZstdCompressor(1).compress, (data[:999], data[999:]))),
    ),
]


def contents(rng: random.Random) -> bytes:
    size = rng.choice([0, 1, 100, 5000, 150_000])
    return rng.choice([bytes(size), rng.randbytes(size), rng.randbytes(50) * (size // 50)])


def damaged(rng: random.Random, packed: bytes, other: bytes) -> bytes:
    data = bytearray(packed)
    for _ in range(rng.randrange(1, 4)):
        at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        kind = rng.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : min(to, at + rng.choice([1, 4, len(data)]))]
        elif kind == 2:
            data[at:at] = bytes(data[at : min(to, at + 64)]) * rng.randrange(1, 2000)
        elif kind == 3:
            data[at:to] = other[at:to]
        elif at + 4 <= len(data):
            data[at : at + 4] = rng.choice([b"\xff\xff\xff\x7f", bytes(4), b"\xff" * 4])
    return bytes(data)


@pytest.mark.parametrize("number", range(len(WRITERS)))
@pytest.mark.parametrize("seed", first_of(range(5)))
def test_damaged_data_is_data_or_corrupt_and_soon_known_as_either(number: int, seed: int) -> None:
    codec, pack = WRITERS[number]
    rng = random.Random(1000 * seed + number)
    for _ in range(MUTATIONS):
        data = contents(rng)
        packed = pack(data)
        assert decompress(codec, packed, max(len(data), SIZE_MAX)) == data
        mutant = damaged(rng, packed, compress(codec, contents(rng)))
        began = time.process_time()
        try:
            unpacked = decompress(codec, mutant, SIZE_MAX)
        except CorruptRecords:
            unpacked = b""
        assert time.process_time() - began < CPU_S_MAX
        assert len(unpacked) <= SIZE_MAX
        bound = {Codec.LZ4: kdist_lz4.bound, Codec.ZSTD: kdist_zstd.bound}.get(codec)
        known = bound(mutant) if bound else None
        assert known is None or len(unpacked) <= known


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
