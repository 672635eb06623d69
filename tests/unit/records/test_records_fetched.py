"""Fetched records of an old log as batches: each record once, whatever its format was."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from kdist.errors import CorruptRecords
from kdist.records.batch import BatchHeader
from kdist.records.build import build_batch, read_batch
from kdist.records.compression import Codec
from kdist.records.convert import iter_fetched
from kdist.records.message_set import Message, write_message
from kdist.records.record import Record
from tests.written_records import write_message_set

CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
FORMATS = list(itertools.product((0, 1), CODECS))
formats = pytest.mark.parametrize(("magic", "codec"), FORMATS)
RECORDS = [
    Record(70, 1_700_000_000_000, b"key", b"value"),
    Record(71, 1_700_000_000_900, None, b"x" * 500),
    Record(72, 1_700_000_000_100, b"tombstone", None),
    Record(73, -1, b"", b""),
]


def as_stored(records: Iterable[Record], magic: int) -> list[Record]:
    """The records without what the old format cannot hold."""
    return [each._replace(timestamp=each.timestamp if magic else -1) for each in records]


def batches_of(data: bytes, offset: int = 0) -> list[tuple[BatchHeader, list[Record]]]:
    return [(header, read_batch(source, at)) for source, at, header in iter_fetched(data, offset)]


def records_of(data: bytes, offset: int = 0) -> list[Record]:
    return [each for _, records in batches_of(data, offset) for each in records]


def batch_of(records: list[Record]) -> bytes:
    columns = [r.value for r in records], [r.key for r in records], None
    times = [r.timestamp for r in records]
    return bytes(build_batch(*columns, times, timestamp_ms=-1, base_offset=records[0].offset))


def until_damage(data: bytes, **options: bool) -> tuple[list[int], str]:
    """The offsets before the damage, and the error's text."""
    found: list[int] = []
    try:
        for source, at, _ in iter_fetched(data, 0, **options):
            found += [record.offset for record in read_batch(source, at)]
    except CorruptRecords as error:
        return found, error.detail
    raise AssertionError(f"nothing is damaged in {data!r}")


@formats
def test_a_message_set_is_one_batch_of_its_codec_with_its_offsets(magic: int, codec: Codec) -> None:
    [(header, records)] = batches_of(write_message_set(RECORDS, magic, codec))
    assert (header.codec, header.base_offset, header.next_offset) == (codec, 70, 74)
    assert header.producer_id == header.partition_leader_epoch == -1
    assert records == as_stored(RECORDS, magic)


@formats
def test_a_message_set_of_another_client_is_read(magic: int, codec: Codec) -> None:
    builder = LegacyRecordBatchBuilder(magic, int(codec), 1 << 20)
    for each in RECORDS:
        offset = each.offset - 70  # as a producer counts: magic 1's are relative
        builder.append(offset, timestamp=each.timestamp, key=each.key, value=each.value)
    expected = [r._replace(offset=r.offset - 70) for r in as_stored(RECORDS, magic)]
    assert records_of(bytes(builder.build())) == expected


gapped = st.lists(
    st.builds(
        Record,
        st.integers(0, 60),
        st.integers(-1, 2**62),
        st.none() | st.binary(max_size=9),
        st.none() | st.binary(max_size=30),
        st.just(()),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda record: record.offset,
).map(lambda records: sorted(records, key=lambda record: record.offset))


def in_pieces(records: list[Record], cuts: list[int]) -> list[list[Record]]:
    places = sorted({0, len(records), *(cut % len(records) for cut in cuts)})
    return [records[a:b] for a, b in itertools.pairwise(places)]


@given(gapped, st.lists(st.integers(0, 20), max_size=4), st.data(), st.integers(0, 61))
def test_old_and_new_in_any_order_come_back_from_any_offset(
    records: list[Record], cuts: list[int], data: st.DataObject, offset: int
) -> None:
    """Compacted, in pieces of any format, among them batches; each piece wrapped or not."""
    log, expected = b"", []
    for piece in in_pieces(records, cuts):
        kind = data.draw(st.sampled_from([None, *FORMATS]))
        if kind is None:
            log += b"".join(batch_of([each]) for each in piece)
            expected += piece
        else:
            log += write_message_set(piece, *kind)
            expected += as_stored(piece, kind[0])
    found = [each for each in records_of(log, offset) if each.offset >= offset]
    assert found == [each for each in expected if each.offset >= offset]


@formats
def test_a_gap_between_offsets_begins_another_batch(magic: int, codec: Codec) -> None:
    compacted = [each for each in RECORDS if each.offset != 71]
    found = batches_of(write_message_set(compacted, magic, codec))
    assert [(h.base_offset, h.next_offset, h.codec) for h, _ in found] == [
        (70, 71, codec),
        (72, 74, codec),
    ]


@formats
def test_messages_before_the_offset_are_left_out(magic: int, codec: Codec) -> None:
    [(header, records)] = batches_of(write_message_set(RECORDS, magic, codec), 72)
    assert header.base_offset == 72
    assert records == as_stored(RECORDS[2:], magic)


@pytest.mark.parametrize("codec", CODECS)
def test_each_log_append_time_is_kept_in_a_batch_of_its_own(codec: Codec) -> None:
    log = (
        write_message_set(RECORDS[:2], 1, codec, append_time_ms=5)
        + write_message_set(RECORDS[2:3], 1, codec, append_time_ms=6)
        + write_message_set(RECORDS[3:], 1, codec)
    )
    found = batches_of(log)
    assert [header.is_log_append_time for header, _ in found] == [True, True, False]
    assert [r.timestamp for _, records in found for r in records] == [5, 5, 6, -1]


def test_wrappers_and_the_messages_between_them_are_batches_each() -> None:
    log = (
        write_message_set(RECORDS[:1], 0)
        + write_message_set(RECORDS[1:2], 1)
        + write_message_set(RECORDS[2:3], 1, Codec.GZIP)
        + write_message_set(RECORDS[3:], 0, Codec.LZ4)
    )
    assert [(h.codec, h.record_count) for h, _ in batches_of(log)] == [(0, 2), (1, 1), (3, 1)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_many_messages_are_batches_that_other_logs_take(codec: Codec) -> None:
    many = [Record(offset, 1, None, b"x" * 1000) for offset in range(1000)]
    found = batches_of(write_message_set(many, 1, codec))
    assert len(found) == 4
    assert all(header.size < 300_000 for header, _ in found)
    assert [each for _, records in found for each in records] == many


@formats
def test_a_message_cut_by_the_answers_limit_is_left_for_the_next_fetch(
    magic: int, codec: Codec
) -> None:
    whole = write_message_set(RECORDS[:1], magic, codec)
    log = whole + write_message_set(RECORDS[1:], magic)
    for size in range(len(log)):
        count = [len(write_message_set(RECORDS[1:n], magic)) for n in range(2, 5)]
        ends = [len(whole), *(len(whole) + each for each in count)]
        whole_ones = sum(end <= size for end in ends)
        assert records_of(log[:size]) == as_stored(RECORDS[:whole_ones], magic)


def test_a_cut_batch_behind_messages_is_left_for_the_next_fetch() -> None:
    old = write_message_set(RECORDS[:2], 1)
    log = old + batch_of(RECORDS[2:])
    for size in range(len(old), len(log)):
        assert records_of(log[:size]) == RECORDS[:2]


@pytest.mark.parametrize("magic", [0, 1])
def test_records_before_damage_are_returned(magic: int) -> None:
    damaged = bytearray(write_message_set(RECORDS[2:3], magic))
    damaged[-1] ^= 1
    log = write_message_set(RECORDS[:2], magic) + damaged + write_message_set(RECORDS[3:], magic)
    offsets, fault = until_damage(log)
    assert offsets == [70, 71]
    assert fault.startswith("message CRC is")


def test_checksums_are_not_checked_where_disabled() -> None:
    inner = bytearray(write_message_set([Record(0, 1, None, b"inner")], 1))
    inner[-1] ^= 1
    packed = zlib.compressobj(wbits=31)
    value = packed.compress(bytes(inner)) + packed.flush()
    wrapper = write_message(*Message(7, 1, int(Codec.GZIP), 1, None, value))
    plain = bytearray(write_message_set([Record(8, 1, None, b"plain")], 1))
    plain[-1] ^= 1
    assert until_damage(wrapper)[0] == until_damage(bytes(plain))[0] == []
    found = iter_fetched(wrapper + plain, 0, check_crcs=False)
    values = [each.value for source, at, _ in found for each in read_batch(source, at)]
    assert values == [b"innes", b"plaio"]


def damaged_wrapper(offset: int, inner: bytes) -> bytes:
    packed = zlib.compressobj(wbits=31)
    value = packed.compress(inner) + packed.flush()
    return write_message(*Message(offset, 1, int(Codec.GZIP), 1, None, value))


LAST = 2**63 - 1
FAR_APART = [Record(0, -(2**62), None, b""), Record(1, 2**63 - 1, None, b"")]


@pytest.mark.parametrize(
    ("log", "fault"),
    [
        (write_message(*Message(3, 1, 7, 0, None, b"")), "codec"),
        (write_message(*Message(3, 1, int(Codec.GZIP), 0, None, b"no gzip")), "damaged"),
        (write_message(*Message(LAST, 1, 0, 0, None, b"")), "the last offset of all"),
        (damaged_wrapper(LAST, write_message_set(RECORDS[:1], 1)), "the last offset of all"),
        (write_message_set(FAR_APART, 1), "do not fit in a batch"),
        (b"\0" * 8 + b"\xff" * 4 + b"\0" * 60, "does not fit"),
    ],
)
def test_damage_is_reported(log: bytes, fault: str) -> None:
    offsets, told = until_damage(write_message_set(RECORDS[:1], 0) + log)
    assert offsets == [70]
    assert fault in told


@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_are_batches_or_refused(data: bytes, check_crcs: bool) -> None:
    try:
        list(iter_fetched(data, 0, check_crcs=check_crcs))
    except CorruptRecords:
        pass


@given(st.sampled_from(FORMATS), st.integers(0, 10_000), st.integers(0, 255), st.booleans())
def test_a_changed_byte_is_read_or_refused(
    kind: tuple[int, Codec], place: int, byte: int, check_crcs: bool
) -> None:
    data = bytearray(write_message_set(RECORDS, *kind))
    data[place % len(data)] = byte
    try:
        list(iter_fetched(data, 0, check_crcs=check_crcs))
    except CorruptRecords:
        pass
