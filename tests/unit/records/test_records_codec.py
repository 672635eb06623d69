"""The record codec: the same expectations for both of its implementations."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist import records
from kdist.errors import CorruptRecords
from kdist.records import (
    _compiled,
    _compiled_produced,
    _compiled_spans,
    _reference,
    _reference_produced,
    _reference_spans,
)
from kdist.records.record import Record, check_size
from kdist.wire import crc32c

INT64_MAX = (1 << 63) - 1

BOTH = pytest.mark.parametrize("codec", [_reference, _compiled], ids=["reference", "compiled"])

buffers = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=20), buffers), max_size=4)
timestamps = st.integers(-1, (1 << 62))
rows = st.lists(st.tuples(buffers, buffers, header_lists, timestamps), max_size=30)


def record(*parts: str) -> bytes:
    """A record of hexadecimal parts, with its length before it."""
    body = bytes.fromhex("".join(parts))
    assert len(body) < 64
    return bytes([len(body) * 2]) + body


def columns(table: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [[row[i] for row in table] for i in range(4)]


@BOTH
@given(table=rows, base_offset=st.integers(0, 1 << 62), base_timestamp=timestamps)
def test_encoded_records_are_decoded_again(
    codec: ModuleType, table: list[tuple[Any, ...]], base_offset: int, base_timestamp: int
) -> None:
    values, keys, headers, stamps = columns(table)
    body = codec.encode_records(values, keys, headers, stamps, base_timestamp)
    expected = [
        Record(base_offset + i, stamp, key, value, tuple(pairs))
        for i, (value, key, pairs, stamp) in enumerate(table)
    ]
    decoded = codec.decode_records(body, len(table), base_offset, base_timestamp)
    assert decoded == expected
    assert all(type(found) is Record for found in decoded)
    assert codec.decode_values(body, len(table)) == values
    assert codec.decode_keys(body, len(table)) == keys
    assert codec.decode_headers(body, len(table)) == [tuple(pairs) for pairs in headers]
    assert codec.find_null_key(body, len(table)) == (keys.index(None) if None in keys else None)


@given(table=rows, room_bytes=st.integers(0, 70))
def test_both_implementations_write_the_same_bytes(
    table: list[tuple[Any, ...]], room_bytes: int
) -> None:
    values, keys, headers, stamps = columns(table)
    base = stamps[0] if stamps else 0
    for given_keys in (None, keys):
        for given_headers in (None, headers):
            for given_stamps in (None, stamps):
                arguments = (values, given_keys, given_headers, given_stamps, base, room_bytes)
                body = _compiled.encode_records(*arguments)
                assert body == _reference.encode_records(*arguments)
                assert body[:room_bytes] == bytes(room_bytes)


@BOTH
@given(headers=st.lists(header_lists, max_size=5))
def test_packed_headers_are_encoded_like_the_headers_in_them(
    codec: ModuleType, headers: list[list[tuple[str, bytes | None]]]
) -> None:
    packed = [codec.pack_headers(each) for each in headers]
    assert packed == [codec.pack_headers(tuple(each)) for each in headers]
    values = [b"v"] * len(headers)
    body = codec.encode_records(values, None, headers)
    assert codec.encode_records(values, None, packed) == body
    mixed = [pair[n % 2] for n, pair in enumerate(zip(headers, packed, strict=True))]
    assert codec.encode_records(values, None, mixed) == body
    assert codec.encode_records([b"v"], None, [b""]) == codec.encode_records([b"v"])


@BOTH
def test_unusual_headers_are_not_packed(codec: ModuleType) -> None:
    assert codec.pack_headers([("h", b"x"), ("n", None)]) == bytes.fromhex("04 0268 0278 026e 01")
    for unusual in (
        None,
        b"",
        {"h": b"x"},
        iter([("h", b"x")]),
        [["h", b"x"]],
        [("h",)],
        [("h", "x")],
        [(b"h", b"x")],
        (("h", bytearray(b"x")),),
    ):
        assert codec.pack_headers(unusual) is None
    with pytest.raises(UnicodeEncodeError):
        codec.pack_headers([("\ud800", b"x"), ()])


@BOTH
def test_one_record_has_its_known_bytes(codec: ModuleType) -> None:
    body = codec.encode_records([b"v"], [b"key"], [[("h", b"x"), ("n", None)]], [7], 10)
    assert body == record("00 05 00 066b6579 0276 04", "0268 0278", "026e 01")


@BOTH
def test_null_and_empty_are_different(codec: ModuleType) -> None:
    body = codec.encode_records([None, b""], [b"", None])
    assert body == record("00 00 00 00 01 00") + record("00 00 02 01 00 00")
    assert [(r.key, r.value) for r in codec.decode_records(body, 2)] == [(b"", None), (None, b"")]


@BOTH
@pytest.mark.parametrize("size", [0, 1, 56, 57, 58, 63, 64, 127, 128, 8191, 8192, 1_048_576])
def test_values_of_all_sizes_around_the_steps_of_a_varint_come_back(
    codec: ModuleType, size: int
) -> None:
    values = [bytes(size)] * 70  # offset deltas of one and two bytes
    assert codec.decode_values(codec.encode_records(values), 70) == values


@BOTH
def test_buffers_of_other_types_are_taken_as_bytes(codec: ModuleType) -> None:
    mixed = [b"a", bytearray(b"b"), memoryview(b"xcx")[1:2], None]
    plain = codec.encode_records([b"a", b"b", b"c", None], [b"a", b"b", b"c", None])
    assert codec.encode_records(mixed, tuple(mixed)) == plain
    with_headers = codec.encode_records([b""], None, [[("h", bytearray(b"v"))]])
    assert codec.decode_records(with_headers, 1)[0].headers == (("h", b"v"),)


@BOTH
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([b"", "text"],), "^value 1 is of type str, not bytes or None$"),
        (([b"", 5],), "^value 1 is of type int"),
        (([b"", b""], [None, "k"]), "^key 1 is of type str"),
        (([b""], None, [[(b"k", b"v")]]), "^the header key of record 0 is of type bytes, not str$"),
        (([b""], None, [[("k", "v")]]), "^the header value of record 0 is of type str"),
        (([b"", b""], None, None, [1, 2.5]), "^timestamp 1 is of type float, not int$"),
        (([b"", b""], None, None, [1, None]), "^timestamp 1 is of type NoneType, not int$"),
    ],
)
def test_an_item_of_a_wrong_type_is_named_with_its_row(
    codec: ModuleType, arguments: tuple[Any, ...], sentence: str
) -> None:
    with pytest.raises(TypeError, match=sentence):
        codec.encode_records(*arguments)


@BOTH
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([b""], []), "^there are 0 keys for 1 values$"),
        (([b""], None, [[], []]), "^there are 2 headers for 1 values$"),
        (([b""], None, None, [1, 2]), "^there are 2 timestamps for 1 values$"),
        (([b""], None, None, [1 << 63]), "^timestamp 0, or its delta"),
        (([b"", b""], None, None, [0, INT64_MAX], -1), "^timestamp 1, or its delta"),
        (([b""], None, None, [0], 1 << 63), None),
        (([b""], None, None, [-2], INT64_MAX), "^timestamp 0, or its delta"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    codec: ModuleType, arguments: tuple[Any, ...], sentence: str | None
) -> None:
    if sentence is None:  # -2**63 is still a delta of 64 bits
        assert codec.decode_records(codec.encode_records(*arguments), 1, 0, 0)[0].timestamp == (
            -1 << 63
        )
    else:
        with pytest.raises(ValueError, match=sentence):
            codec.encode_records(*arguments)


@BOTH
def test_timestamps_at_both_ends_of_64_bits_come_back(codec: ModuleType) -> None:
    for base, stamps in [(0, [INT64_MAX, -INT64_MAX]), (INT64_MAX, [0, 1]), (-1, [-1 << 63])]:
        body = codec.encode_records([b""] * len(stamps), None, None, stamps, base)
        assert [r.timestamp for r in codec.decode_records(body, len(stamps), 0, base)] == stamps


@BOTH
def test_offsets_come_from_the_wire_so_gaps_of_compaction_stay(codec: ModuleType) -> None:
    body = record("00 00 04 01 02 61 00") + record("00 00 0e 01 02 62 00")
    assert [r.offset for r in codec.decode_records(body, 2, 100)] == [102, 107]


@BOTH
def test_log_append_time_overrides_every_timestamp(codec: ModuleType) -> None:
    body = codec.encode_records([b"a", b"b"], None, None, [5, 9], 5)
    assert [r.timestamp for r in codec.decode_records(body, 2, 0, 5, 77)] == [77, 77]
    assert [r.timestamp for r in codec.decode_records(body, 2, 0, 5, None)] == [5, 9]


@BOTH
def test_unused_attribute_bits_are_ignored(codec: ModuleType) -> None:
    assert codec.decode_values(record("ff 00 00 01 02 61 00"), 1) == [b"a"]


@BOTH
@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b"", 1),
        (b"", -1),
        (record("00 00 00 01 02 61 00"), 0),  # a record too many
        (record("00 00 00 01 02 61 00"), 2),
        (record("00 00 00 01 02 61 00") + b"\0", 1),  # trailing bytes
        (record("00 00 00 01 02 61 00 00"), 1),  # within the record
        (b"\x01" + bytes(9), 1),  # a length of -1
        (b"\x00" + bytes(9), 1),  # no attributes
        (bytes.fromhex("feffffff0f") + bytes(9), 1),  # 2 GiB
        (bytes.fromhex("ffffffff1f") + bytes(9), 1),  # 33 bits
        (record("00 80808080808080808002 00 01 02 61 00"), 1),  # a delta of 65 bits
        (record("00 80808080808080808080 00 00 01 01 00"), 1),
        (record("00 00 01 01 02 61 00"), 1),  # offset delta -1
        (record("00 00 02 01 01 00") + record("00 00 02 01 01 00"), 2),  # the same twice
        (record("00 00 00 03 02 61 00"), 1),  # a key of -2 bytes
        (record("00 00 00 01 03 61 00"), 1),  # a value of -2
        (record("00 00 00 01 04 61 00"), 1),  # a value that takes the next byte, then nothing
        (record("00 00 00 01 feffffff0f 00"), 1),  # a value of 2 GiB
        (record("00 00 00 01 02 61 01"), 1),  # -1 headers
        (record("00 00 00 01 02 61 02"), 1),  # a header that is not there
        (record("00 00 00 01 02 61 feffffff0f 00"), 1),  # 2**31 of them
        (record("00 00 00 01 01 02 01 00"), 1),  # a header without a key
        (record("00 00 00 01 01 02 02 6b 03"), 1),  # a header's value of -2
    ],
)
def test_records_that_break_the_format_are_corrupt(
    codec: ModuleType, body: bytes, count: int
) -> None:
    lists = (codec.decode_values, codec.decode_keys, codec.decode_headers)
    for decode in (codec.decode_records, *lists, codec.decode_numbers, codec.find_null_key):
        with pytest.raises(CorruptRecords):
            decode(body, count)


@BOTH
def test_a_header_key_that_is_not_utf_8_is_read_with_replacements(codec: ModuleType) -> None:
    (read,) = codec.decode_records(record("00 00 00 01 01 02 06 61 ff 62 01"), 1)
    assert read.headers == (("a\ufffdb", None),)


@BOTH
def test_offsets_and_timestamps_beyond_64_bits_are_corrupt(codec: ModuleType) -> None:
    body = record("00 02 02 01 01 00")  # both deltas 1
    assert codec.decode_records(body, 1, INT64_MAX - 1, INT64_MAX - 1)[0][:2] == (INT64_MAX,) * 2
    with pytest.raises(CorruptRecords, match="offset"):
        codec.decode_records(body, 1, INT64_MAX, 0)
    with pytest.raises(CorruptRecords, match="timestamp"):
        codec.decode_records(body, 1, 0, INT64_MAX)
    with pytest.raises(CorruptRecords, match="timestamp"):
        codec.decode_records(record("00 01 00 01 01 00"), 1, 0, -1 << 63)


@BOTH
@given(table=st.lists(st.tuples(buffers, buffers), max_size=30), overhead=st.integers(0, 100))
def test_a_running_size_covers_the_records_before(
    codec: ModuleType, table: list[tuple[bytes | None, bytes | None]], overhead: int
) -> None:
    values, keys = [value for value, _ in table], [key for _, key in table]
    for part in range(len(table) + 1):
        of_values = sum(len(value or b"") + overhead for value in values[:part])
        of_keys = sum(len(key or b"") for key in keys[:part])
        assert codec.running_sizes(values, None, overhead)[part] == of_values
        assert codec.running_sizes(values, keys, overhead)[part] == of_values + of_keys


@BOTH
def test_running_sizes_are_of_bytes_alone(codec: ModuleType) -> None:
    class Text(bytes):
        pass

    assert codec.running_sizes([Text(b"abc")], [Text(b"k")], 1).tolist() == [0, 5]
    for other in ("a", bytearray(b"a"), 1):
        assert codec.running_sizes([b"a", other], None, 0) is None
        assert codec.running_sizes([b"a", b"b"], [None, other], 0) is None
    with pytest.raises(ValueError, match="1 keys for 2 values"):
        codec.running_sizes([b"a", b"b"], [b"k"], 0)


@BOTH
def test_a_body_cut_at_any_length_is_corrupt(codec: ModuleType) -> None:
    body = codec.encode_records([b"one", None], [None, b"k"], [[("h", b"v")], []], [1, 300], 1)
    for size in range(len(body)):
        with pytest.raises(CorruptRecords):
            codec.decode_records(body[:size], 2)


def test_values_too_large_for_a_batch_are_refused() -> None:
    values = [bytes(1 << 20)] * 2048  # 2 GiB, of which only one MiB is there
    with pytest.raises(ValueError, match="more than one batch holds"):
        _compiled.encode_records(values)
    with pytest.raises(ValueError, match="more than one batch holds"):
        check_size(1 << 31)


def implementation(code: str = "", **environment: str) -> str:
    """What a fresh interpreter chooses, after running `code`."""
    report = "from kdist.records import codec; print(codec.IMPLEMENTATION)"
    command = [sys.executable, "-c", f"{code}\n{report}"]
    path = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, env=environment | path, capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_the_compiled_codec_is_used_unless_pure_is_forced_or_it_is_not_built() -> None:
    assert implementation() == "compiled"
    assert implementation(KDIST_PURE="1") == "reference"
    assert implementation("import sys; sys.modules['kdist.records._compiled'] = None") == (
        "reference"
    )


@pytest.mark.parametrize(
    ("compiled", "reference", "names"),
    [
        (_compiled_spans, _reference_spans, ("find_span", "producer_headers")),
        (
            _compiled_produced,
            _reference_produced,
            ("find_batch", "check_batch", "batch_totals", "assign"),
        ),
    ],
)
@pytest.mark.parametrize(("is_pure", "is_built"), [(False, True), (True, True), (False, False)])
def test_the_compiled_functions_are_used_unless_pure_is_forced_or_not_built(
    monkeypatch: pytest.MonkeyPatch,
    compiled: ModuleType,
    reference: ModuleType,
    names: tuple[str, ...],
    is_pure: bool,
    is_built: bool,
) -> None:
    monkeypatch.setattr(crc32c, "IS_PURE", is_pure)
    monkeypatch.delitem(sys.modules, "kdist.records.codec", raising=False)
    if not is_built:
        monkeypatch.delattr(records, compiled.__name__.rpartition(".")[2])
        monkeypatch.setitem(sys.modules, compiled.__name__, None)
    chosen = runpy.run_module("kdist.records.codec")
    serving = compiled if is_built and not is_pure else reference
    for name in names:
        assert chosen[name] is getattr(serving, name)


def test_the_source_of_the_compiled_codec_is_no_module_of_its_own() -> None:
    source = Path(_reference.__file__).with_name("_compiled.py")
    loader = SourceFileLoader("kdist.records._compiled_source", str(source))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    with pytest.raises(ImportError, match="has not been built"):
        loader.exec_module(module)
