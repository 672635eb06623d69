"""Whole message sets: both implementations agree with each other and with reading one by one."""

from __future__ import annotations

import runpy
import struct
import sys
import zlib
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist import records
from kdist.errors import CorruptRecords
from kdist.records import _compiled_messages, _reference_messages
from kdist.records._reference_messages import Columns, Written
from kdist.records.batch import HEADER_SIZE, BatchHeader, read_header, stamp_append_time
from kdist.records.build import build_batch, read_body
from kdist.records.compression import Codec
from kdist.records.convert import up_convert, up_convert_plain
from kdist.records.message_set import (
    MAGIC_MAX,
    iter_messages,
    write_message_set,
)
from kdist.records.record import INT64_MAX, INT64_MIN, Record
from kdist.wire import pure

BOTH = pytest.mark.parametrize(
    "codec", [_reference_messages, _compiled_messages], ids=["reference", "compiled"]
)
NOW_MS = 1_700_000_000_000
RECORDS = [
    Record(0, NOW_MS, b"key", b"value"),
    Record(1, NOW_MS + 900, None, b"x" * 500),
    Record(2, NOW_MS - 100, b"tombstone", None),
    Record(3, -1, b"", b""),
]

magics = st.integers(0, MAGIC_MAX)
buffers = st.none() | st.binary(max_size=40)
rows = st.lists(
    st.tuples(buffers, buffers, st.integers(-1, 2**61), st.booleans()), min_size=1, max_size=9
)


def batch_of(found: list[Record], codec: Codec = Codec.NONE, base_offset: int = 0) -> bytearray:
    return build_batch(
        [record.value for record in found],
        [record.key for record in found],
        [record.headers for record in found],
        [record.timestamp for record in found],
        timestamp_ms=-1,
        codec=codec,
        base_offset=base_offset,
    )


def written(
    codec: ModuleType,
    body: bytes | bytearray | memoryview,
    header: BatchHeader,
    limits: tuple[int, int, int],
) -> Written | str | None:
    """The codec's result in comparable form; "corrupt" if it raises."""
    try:
        found: Written | None = codec.write_messages(body, header, *limits)
    except CorruptRecords:
        return "corrupt"
    return None if found is None else found._replace(content=bytes(found.content))


def both_written(
    body: bytes | bytearray | memoryview, header: BatchHeader, *limits: int
) -> Written | str | None:
    """The result of both, which must be the same."""
    magic, lowest_offset, count_max = limits
    reference = written(_reference_messages, body, header, (magic, lowest_offset, count_max))
    assert written(_compiled_messages, body, header, (magic, lowest_offset, count_max)) == reference
    return reference


@given(
    rows,
    magics,
    st.sampled_from([Codec.NONE, Codec.GZIP]),
    st.sampled_from([0, 7, 2**62]),
    st.integers(-2, 11),
    st.integers(1, 11),
    st.booleans(),
)
def test_both_write_a_batch_alike(
    table: list[tuple[bytes | None, bytes | None, int, bool]],
    magic: int,
    codec: Codec,
    base_offset: int,
    above: int,
    count_max: int,
    is_append_time: bool,
) -> None:
    found = [
        Record(number, at, key, value, (("h", value),) if has_header else ())
        for number, (key, value, at, has_header) in enumerate(table)
    ]
    batch = batch_of(found, codec, base_offset)
    if is_append_time:
        stamp_append_time(batch, 0, NOW_MS)
    header = read_header(batch)
    wanted = both_written(
        read_body(batch, 0, header), header, magic, base_offset + above, count_max
    )
    expected = found[max(above, 0) :][:count_max]
    assert (wanted.record_count if isinstance(wanted, Written) else 0) == len(expected)


@given(magics, st.integers(0, 200), st.integers(0, 255))
def test_a_damaged_body_is_refused_by_both_or_by_neither(magic: int, at: int, byte: int) -> None:
    batch = batch_of(RECORDS)
    batch[HEADER_SIZE + at] = byte
    both_written(bytes(batch[HEADER_SIZE:]), read_header(batch), magic, 0, 10)


def test_a_body_that_is_cut_is_corrupt_at_every_length() -> None:
    batch = batch_of(RECORDS)
    body, header = bytes(batch[HEADER_SIZE:]), read_header(batch)
    for end in range(len(body)):
        assert both_written(body[:end], header, 1, 0, 10) == "corrupt"


@pytest.mark.parametrize("count_max", [1, 2, 10])
@pytest.mark.parametrize("changed", [{"base_offset": INT64_MAX}, {"base_timestamp": INT64_MAX}])
def test_numbers_of_more_than_64_bits_are_corrupt_even_in_unused_columns(
    changed: dict[str, int], count_max: int
) -> None:
    batch = build_batch([b"1", b"2"], timestamps=[5, 6], timestamp_ms=-1)
    header = read_header(batch)._replace(**changed)
    assert both_written(batch[HEADER_SIZE:], header, 1, 0, count_max) == "corrupt"


@BOTH
@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_every_length_have_the_right_checksum(codec: ModuleType, magic: int) -> None:
    found = [Record(size, NOW_MS, b"k" * (size // 3), b"v" * size) for size in range(70)]
    batch = batch_of(found)
    made = codec.write_messages(batch[HEADER_SIZE:], read_header(batch), magic, 0, 100)
    assert bytes(made.content) == write_message_set(found, magic)
    assert (made.record_count, made.last_offset, made.max_timestamp) == (70, 69, NOW_MS)


# --- reading ------------------------------------------------------------------------------------


def both_read(messages: bytes, magic: int) -> Columns | None:
    """What both find in it, which must be the same."""
    reference = _reference_messages.read_columns(messages, magic)
    assert _compiled_messages.read_columns(messages, magic) == reference
    return reference


@given(rows, magics)
def test_both_read_a_set_alike(
    table: list[tuple[bytes | None, bytes | None, int, bool]], magic: int
) -> None:
    found = [Record(5, at, key, value) for key, value, at, _ in table]
    assert both_read(write_message_set(found, magic), magic) == Columns(
        [record.value for record in found],
        [record.key for record in found],
        [record.timestamp if magic else -1 for record in found],
    )


@pytest.mark.parametrize("magic", [0, 1])
def test_a_damaged_set_has_no_columns(magic: int) -> None:
    whole = write_message_set(RECORDS, magic)
    ends = {len(write_message_set(RECORDS[:count], magic)) for count in range(1, 5)}
    for at in range(len(whole)):
        assert (both_read(whole[:at], magic) is not None) == (at in ends)
        damaged = bytearray(whole)
        damaged[at] ^= 0x41
        both_read(bytes(damaged), magic)  # an offset's bytes are nobody's


@pytest.mark.parametrize("magic", [0, 1])
@given(
    st.integers(-3, 12) | st.just(-(1 << 31)) | st.just((1 << 31) - 1),
    st.integers(-3, 12) | st.just((1 << 31) - 1),
    st.binary(max_size=12),
)
def test_both_detect_lengths_that_reach_too_far(
    magic: int, key_length: int, value_length: int, data: bytes
) -> None:
    """The checksum is right: only the lengths say that something is wrong."""
    for key_bytes in range(len(data) + 1):
        checked = struct.pack(">bb", magic, 0) + bytes(8 * magic)
        checked += struct.pack(">i", key_length) + data[:key_bytes]
        checked += struct.pack(">i", value_length) + data[key_bytes:]
        both_read(struct.pack(">qiI", 0, 4 + len(checked), zlib.crc32(checked)) + checked, magic)


def test_only_plain_messages_of_the_magic_that_is_asked_for_have_columns() -> None:
    for magic in (-1, 2, 3, 100, 255):
        assert both_read(write_message_set(RECORDS, 1), magic) is None
        renamed = bytearray(write_message_set(RECORDS[:1], 1))
        renamed[16] = magic & 0xFF
        assert both_read(bytes(renamed), magic) is None
    assert both_read(b"", 0) is None
    assert both_read(write_message_set(RECORDS, 0), 1) is None
    assert both_read(write_message_set(RECORDS[:1], 0) + write_message_set(RECORDS, 1), 0) is None
    assert both_read(write_message_set(RECORDS, 1, Codec.GZIP), 1) is None
    assert both_read(write_message_set(RECORDS, 1, append_time_ms=5), 1) is None


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [None, Codec.NONE, Codec.LZ4])
def test_a_plain_set_becomes_the_batch_that_it_becomes_message_by_message(
    magic: int, codec: Codec | None
) -> None:
    produced = write_message_set(RECORDS, magic)
    [batch] = up_convert(iter_messages(produced), 1 << 20, codec)
    assert up_convert_plain(memoryview(produced), magic, codec) == batch
    assert up_convert_plain(produced[:-1], magic, codec) is None


def test_timestamps_too_far_apart_for_a_batch_are_corrupt() -> None:
    far = [Record(0, INT64_MIN, None, b""), Record(1, INT64_MAX, None, b"")]
    with pytest.raises(CorruptRecords, match="do not fit"):
        up_convert_plain(write_message_set(far, 1), 1)


def test_without_the_compiled_module_the_reference_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pure, "IS_PURE", False)
    monkeypatch.setitem(sys.modules, "kdist.records._compiled_messages", None)
    monkeypatch.delattr(records, "_compiled_messages")
    names = runpy.run_path(str(records.__path__[0]) + "/messages.py")
    assert names["read_columns"] is _reference_messages.read_columns
    assert names["write_messages"] is _reference_messages.write_messages
