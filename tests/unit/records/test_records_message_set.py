"""Message sets of magic 0 and 1, byte for byte as Apache Kafka writes them and others read them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import pytest
from aiokafka.record.legacy_records import _LegacyRecordBatchBuilderPy, _LegacyRecordBatchPy
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from kdist.errors import CorruptRecords
from kdist.records.compression import Codec
from kdist.records.message_set import Message, iter_messages, write_message
from kdist.records.record import Record
from tests.written_records import iter_records, write_message_set

SIZE_MAX = 1 << 20
CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
RECORDS = [
    Record(7, 1_700_000_000_000, b"key", b"value"),
    Record(8, 1_700_000_000_900, None, b"x" * 5000),
    Record(9, 1_700_000_000_100, b"tombstone", None),
    Record(10, -1, b"", b""),
]
FORMATS = [(magic, codec) for magic in (0, 1) for codec in CODECS]
formats = pytest.mark.parametrize(("magic", "codec"), FORMATS)
formats_of_aiokafka = pytest.mark.parametrize(  # it refuses the wrong checksum altogether
    ("magic", "codec"), [pair for pair in FORMATS if pair != (0, Codec.LZ4)]
)


def as_stored(records: Sequence[Record], magic: int) -> list[Record]:
    """The records without what the format cannot hold."""
    return [
        record._replace(headers=(), timestamp=record.timestamp if magic else -1)
        for record in records
    ]


def read(data: bytes) -> list[Record]:
    return list(iter_records(data, SIZE_MAX))


def foreign_records(batches: Sequence[object]) -> list[Record]:
    return [
        Record(r.offset, -1 if r.timestamp is None else r.timestamp, r.key, r.value)
        for batch in batches
        for r in batch  # type: ignore[attr-defined]
    ]


GOLDEN_RECORDS = [
    Record(100, 1_700_000_000_000, b"k", b"one one one one one one one"),
    Record(103, 1_700_000_000_009, b"k", None),
    Record(104, 1_700_000_000_001, None, b"three"),
]
SETS = [  # magic, codec, append time, bytes
    (
        0,
        Codec.NONE,
        None,
        bytes.fromhex(
            "00000000000000640000002a93943a170000000000016b0000001b6f6e65206f6e65206f6e65206f"
            "6e65206f6e65206f6e65206f6e6500000000000000670000000f908204f60000000000016bffffff"
            "ff000000000000006800000013f77204c10000ffffffff000000057468726565"
        ),
    ),
    (
        0,
        Codec.GZIP,
        None,
        bytes.fromhex(
            "00000000000000680000005c0e52aad20001ffffffff0000004e1f8b08000000000000ff63600083"
            "1420d69a3cc54a1ccc63cc0612d2f979a90a38304413433a10f34f6862f906d5f51f08a05219402c"
            "fcbd88e52003035494b524a3283515002a4ee58970000000"
        ),
    ),
    (
        0,
        Codec.SNAPPY,
        None,
        bytes.fromhex(
            "000000000000006800000078d66571820002ffffffff0000006a82534e4150505900000000010000"
            "000100000056700000090124640000002a93943a1700010124016b0000001b6f6e65205a04000125"
            "2c000000670000000f908204f6010d1800016bffffffff050b6400006800000013f77204c10000ff"
            "ffffff000000057468726565"
        ),
    ),
    (
        0,
        Codec.LZ4,
        None,
        bytes.fromhex(
            "00000000000000680000006d61addb230003ffffffff0000005f04224d1860401a50000000120001"
            "0091640000002a93943a170f00af016b0000001b6f6e6520040004012600b00000670000000f9082"
            "04f60d007100016bffffffff0b00d300006800000013f77204c10000160060057468726565000000"
            "00"
        ),
    ),
    (
        1,
        Codec.NONE,
        None,
        bytes.fromhex(
            "0000000000000064000000327187420a01000000018bcfe56800000000016b0000001b6f6e65206f"
            "6e65206f6e65206f6e65206f6e65206f6e65206f6e650000000000000067000000177ffcba0c0100"
            "0000018bcfe56809000000016bffffffff00000000000000680000001b633994bf01000000018bcf"
            "e56801ffffffff000000057468726565"
        ),
    ),
    (
        1,
        Codec.GZIP,
        None,
        bytes.fromhex(
            "00000000000000680000006cf21bce5101010000018bcfe56809ffffffff000000561f8b08000000"
            "000000ff63608003a3c276272e462083b1fbfcd30c900863369090cecf4b55c081a13a998158bcfe"
            "cf2e1eb86e4eb0eeff400055c2023229d972ca7eb81246a82c6b4946516a2a003d023c1e88000000"
        ),
    ),
    (
        1,
        Codec.GZIP,
        777,
        bytes.fromhex(
            "00000000000000680000006631abbd3301090000000000000309ffffffff000000501f8b08000000"
            "000000ff63608003a3aae69bb58c1c100e33279060cc0612d2f979a90a3830542733108bb778cabf"
            "42d3fd1f08a04a5840269d97aaea472881cab2966414a5a60200fd8c103288000000"
        ),
    ),
    (
        1,
        Codec.SNAPPY,
        None,
        bytes.fromhex(
            "00000000000000680000008a824bcf1701020000018bcfe56809ffffffff0000007482534e415050"
            "590000000001000000010000006088010000190134327187420a01000000018bcfe568011824016b"
            "0000001b6f6e65205a040001252c00000003000000177ffcba0c153e00090147106bffffffff0120"
            "2c000000040000001b633994bf15233401ffffffff000000057468726565"
        ),
    ),
    (
        1,
        Codec.LZ4,
        None,
        bytes.fromhex(
            "00000000000000680000007e75d3931e01030000018bcfe56809ffffffff0000006804224d186040"
            "825900000016000100e0327187420a01000000018bcfe5681800af016b0000001b6f6e6520040004"
            "002500c500000003000000177ffcba0c3e0010094700516bffffffff2100300000044a0045633994"
            "bf230013011e006005746872656500000000"
        ),
    ),
]
every_set = pytest.mark.parametrize(("magic", "codec", "append_time_ms", "data"), SETS)


# --- one message --------------------------------------------------------------------------------


def test_a_magic_0_message_has_the_bytes_of_the_table() -> None:
    checked = b"\x00\x00" + b"\x00\x00\x00\x01k" + b"\xff\xff\xff\xff"
    expected = struct.pack(">qiI", 42, 4 + len(checked), zlib.crc32(checked)) + checked
    assert write_message(*Message(42, 0, 0, 123, b"k", None)) == expected


def test_a_magic_1_message_has_its_timestamp_between_attributes_and_key() -> None:
    checked = b"\x01\x08" + struct.pack(">q", 123) + b"\xff\xff\xff\xff" + b"\x00\x00\x00\x01v"
    expected = struct.pack(">qiI", 42, 4 + len(checked), zlib.crc32(checked)) + checked
    assert write_message(*Message(42, 1, 8, 123, None, b"v")) == expected


@formats
def test_records_come_back_as_they_went_in(magic: int, codec: Codec) -> None:
    data = write_message_set(RECORDS, magic, codec)
    assert read(data) == as_stored(RECORDS, magic)


records_lists = st.lists(
    st.builds(
        Record,
        st.integers(0, 1000),
        st.integers(-1, 2**62),
        st.none() | st.binary(max_size=30),
        st.none() | st.binary(max_size=300),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda record: record.offset,
).map(sorted)


@given(records_lists, st.sampled_from([0, 1]), st.sampled_from(CODECS))
def test_any_records_with_gaps_between_their_offsets_come_back(
    records: list[Record], magic: int, codec: Codec
) -> None:
    assert read(write_message_set(records, magic, codec)) == as_stored(records, magic)


def test_no_records_make_an_empty_set() -> None:
    assert write_message_set([], 1, Codec.GZIP) == b""
    assert read(b"") == []


# --- wrappers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_wrapper_carries_the_last_offset_and_the_largest_timestamp(codec: Codec) -> None:
    [wrapper] = iter_messages(write_message_set(RECORDS, 1, codec))
    assert wrapper.is_wrapper
    assert (wrapper.offset, wrapper.timestamp, wrapper.key) == (10, 1_700_000_000_900, None)


def inner_offsets(magic: int) -> list[int]:
    [wrapper] = iter_messages(write_message_set(RECORDS, magic, Codec.GZIP))
    assert wrapper.value is not None
    content = zlib.decompress(wrapper.value, wbits=31)
    return [message.offset for message in iter_messages(content)]


def test_offsets_in_a_wrapper_are_absolute_in_magic_0_and_relative_in_magic_1() -> None:
    assert inner_offsets(magic=0) == [7, 8, 9, 10]
    assert inner_offsets(magic=1) == [0, 1, 2, 3]


def gzip_wrapper(inner: bytes, offset: int, magic: int = 1, attributes: int = 0) -> bytes:
    packed = zlib.compressobj(wbits=31)
    value = packed.compress(inner) + packed.flush()
    return write_message(*Message(offset, magic, attributes | Codec.GZIP, 555, None, value))


def test_a_wrapper_at_a_later_offset_moves_the_records_in_it() -> None:
    data = gzip_wrapper(
        write_message_set([Record(0, 1, None, b"a"), Record(3, 2, None, b"b")], 1), 103
    )
    assert [record.offset for record in read(data)] == [100, 103]


def test_a_wrapper_of_offset_zero_holds_offsets_from_zero_as_old_librdkafka_sends_them() -> None:
    data = gzip_wrapper(
        write_message_set([Record(0, 1, None, b"a"), Record(1, 2, None, b"b")], 1), 0
    )
    assert [record.offset for record in read(data)] == [0, 1]


def test_a_wrapper_below_the_last_offset_in_it_is_corrupt() -> None:
    data = gzip_wrapper(write_message_set([Record(5, 1, None, b"a")], 1), 4)
    with pytest.raises(CorruptRecords, match="wrapper offset 4"):
        read(data)


def test_a_wrappers_append_time_overrides_the_timestamps_in_it() -> None:
    inner = write_message_set(RECORDS, 1)
    assert {r.timestamp for r in read(gzip_wrapper(inner, 10, attributes=8))} == {555}
    assert {r.timestamp for r in read(gzip_wrapper(inner, 10))} == {r.timestamp for r in RECORDS}


@formats
def test_append_time_is_written_to_every_record(magic: int, codec: Codec) -> None:
    data = write_message_set(RECORDS, magic, codec, append_time_ms=1234)
    assert {record.timestamp for record in read(data)} == {1234 if magic else -1}
    assert {message.is_log_append_time for message in iter_messages(data)} == {magic == 1}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (gzip_wrapper(b"", 0), "nothing in it"),
        (gzip_wrapper(gzip_wrapper(b"x", 0), 0), "a wrapper within a wrapper"),
        (gzip_wrapper(write_message_set(RECORDS, 0), 10), "magic 0 in a wrapper of magic 1"),
        (gzip_wrapper(write_message_set(RECORDS, 1)[:-1], 10), "does not fit"),
        (write_message(*Message(0, 1, Codec.GZIP, 0, None, None)), "without a value"),
        (write_message(*Message(0, 1, Codec.ZSTD, 0, None, b"x")), "zstd does not exist"),
        (write_message(*Message(0, 1, 7, 0, None, b"x")), "unknown compression codec 7"),
    ],
)
def test_an_unsound_wrapper_is_corrupt(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptRecords, match=reason):
        read(data)


def test_a_wrapper_may_not_hold_more_than_the_bound() -> None:
    inner = write_message_set([Record(0, 0, None, bytes(100_000))], 1)
    data = gzip_wrapper(inner, 0)
    assert len(list(iter_records(data, len(inner)))) == 1
    with pytest.raises(CorruptRecords):
        list(iter_records(data, len(inner) - 1))


# --- damage -------------------------------------------------------------------------------------


@formats
def test_a_set_cut_anywhere_is_corrupt_or_partial_where_that_is_allowed(
    magic: int, codec: Codec
) -> None:
    records = [Record(1, 5, b"a", b"one"), Record(2, 6, None, b"two")]
    data = write_message_set(records, magic, codec)
    whole = as_stored(records, magic)
    ends = [0, len(data) if codec else len(write_message_set(records[:1], magic)), len(data)]
    for cut in range(len(data)):
        if cut not in ends:
            with pytest.raises(CorruptRecords):
                read(data[:cut])
        kept = list(iter_records(data[:cut], SIZE_MAX, may_end_partial=True))
        assert kept == whole[: sum(cut >= end for end in ends[1:])]


@formats
def test_every_flipped_bit_is_noticed(magic: int, codec: Codec) -> None:
    data = write_message_set([Record(1, 5, b"a", b"one")], magic, codec)
    for bit in range(8 * 8, 8 * len(data)):  # the offset alone is not covered by the CRC
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecords):
            read(bytes(damaged))


@given(st.binary(max_size=80), st.integers(0, 1), st.integers(0, 15))
def test_any_bytes_behind_a_right_crc_are_read_or_corrupt(
    body: bytes, magic: int, attributes: int
) -> None:
    checked = bytes((magic, attributes)) + body
    data = struct.pack(">qiI", 0, 4 + len(checked), zlib.crc32(checked)) + checked
    try:
        records = read(data)
    except CorruptRecords:
        return
    assert records


def test_a_batch_of_magic_2_is_refused_as_a_message() -> None:
    checked = b"\x02\x00" + bytes(60)
    data = struct.pack(">qiI", 0, 4 + len(checked), zlib.crc32(checked)) + checked
    with pytest.raises(CorruptRecords, match="magic 2"):
        read(data)


# --- other implementations ----------------------------------------------------------------------


@formats
def test_kafka_python_reads_what_is_written(magic: int, codec: Codec) -> None:
    data = write_message_set(RECORDS, magic, codec)
    batches = list(MemoryRecords(data))
    assert all(batch.validate_crc() for batch in batches)
    assert foreign_records(batches) == as_stored(RECORDS, magic)


@formats_of_aiokafka
def test_aiokafka_reads_what_is_written(magic: int, codec: Codec) -> None:
    data = write_message_set(RECORDS, magic, codec)
    batches = []
    while data:
        end = 12 + int.from_bytes(data[8:12], "big")
        batches.append(_LegacyRecordBatchPy(data[:end], magic))
        data = data[end:]
    assert all(batch.validate_crc() for batch in batches)
    assert foreign_records(batches) == as_stored(RECORDS, magic)


def foreign_set(builder: object) -> bytes:
    for index, record in enumerate(RECORDS):
        builder.append(  # type: ignore[attr-defined]
            index, timestamp=record.timestamp, key=record.key, value=record.value
        )
    return bytes(builder.build())  # type: ignore[attr-defined]


@formats
def test_what_kafka_python_writes_is_read(magic: int, codec: Codec) -> None:
    records = read(foreign_set(LegacyRecordBatchBuilder(magic, int(codec), 1 << 20)))
    expected = [r._replace(offset=i) for i, r in enumerate(as_stored(RECORDS, magic))]
    assert records == expected


@formats_of_aiokafka
def test_what_aiokafka_writes_is_read(magic: int, codec: Codec) -> None:
    records = read(foreign_set(_LegacyRecordBatchBuilderPy(magic, int(codec), 1 << 20)))
    expected = [r._replace(offset=i) for i, r in enumerate(as_stored(RECORDS, magic))]
    assert records == expected


@pytest.mark.parametrize("magic", [0, 1])
def test_plain_sets_are_byte_for_byte_those_of_kafka_python_and_aiokafka(magic: int) -> None:
    records = [record._replace(offset=index) for index, record in enumerate(RECORDS)]
    ours = write_message_set(records, magic)
    assert ours == foreign_set(LegacyRecordBatchBuilder(magic, 0, 1 << 20))
    assert ours == foreign_set(_LegacyRecordBatchBuilderPy(magic, 0, 1 << 20))  # type: ignore[arg-type]


def test_lz4_of_magic_0_carries_the_wrong_header_checksum_and_magic_1_the_right_one() -> None:
    checksums = []
    for magic in (0, 1):
        [wrapper] = iter_messages(write_message_set(RECORDS, magic, Codec.LZ4))
        assert wrapper.value is not None
        checksums.append(wrapper.value[6])
    assert checksums == [0x1A, 0x82]  # xxHash-32 of 04224d186040 and of 6040


@every_set
def test_what_apache_kafka_wrote_is_read(
    magic: int, codec: Codec, append_time_ms: int | None, data: bytes
) -> None:
    timestamps = [record.timestamp if magic else -1 for record in GOLDEN_RECORDS]
    if append_time_ms is not None:
        timestamps = [append_time_ms] * len(GOLDEN_RECORDS)
    expected = [
        record._replace(timestamp=timestamp)
        for record, timestamp in zip(GOLDEN_RECORDS, timestamps, strict=True)
    ]
    assert list(iter_records(data, 10_000)) == expected
    assert {message.attributes & 7 for message in iter_messages(data)} == {codec}


@pytest.mark.parametrize(
    ("magic", "codec", "append_time_ms", "data"),
    [row for row in SETS if row[1] in (Codec.NONE, Codec.LZ4)],
)
def test_what_is_written_has_the_bytes_of_apache_kafka_where_the_compressor_leaves_no_choice(
    magic: int, codec: Codec, append_time_ms: int | None, data: bytes
) -> None:
    assert write_message_set(GOLDEN_RECORDS, magic, codec, append_time_ms=append_time_ms) == data
