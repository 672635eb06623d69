"""Varints, nullable strings and tagged sections: by their bytes, at every cut, from any bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdist.errors import ProtocolError
from kdist.wire.primitives import (
    get_nullable_string,
    get_signed,
    get_signed32,
    get_tags,
    get_unsigned,
    put_nullable_string,
    put_signed,
    put_tags,
    put_unsigned,
    refuse_count,
    refuse_length,
)

Getter = Callable[[bytes, int], tuple[int, int]]

uint32 = st.integers(0, (1 << 32) - 1)
int32 = st.integers(-1 << 31, (1 << 31) - 1)
int64 = st.integers(-1 << 63, (1 << 63) - 1)


def unsigned(value: int) -> bytes:
    out = bytearray()
    put_unsigned(out, value)
    return bytes(out)


def signed(value: int) -> bytes:
    out = bytearray()
    put_signed(out, value)
    return bytes(out)


@pytest.mark.parametrize(
    ("value", "coded"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (0xFFFF_FFFF, "ffffffff0f"),
    ],
)
def test_unsigned_varints_have_their_known_bytes(value: int, coded: str) -> None:
    assert unsigned(value).hex() == coded
    assert get_unsigned(bytes.fromhex(coded), 0) == (value, len(coded) // 2)


@pytest.mark.parametrize(
    ("value", "coded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-2, "03"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        ((1 << 31) - 1, "feffffff0f"),
        (-1 << 31, "ffffffff0f"),
        ((1 << 63) - 1, "feffffffffffffffff01"),
        (-1 << 63, "ffffffffffffffffff01"),
    ],
)
def test_signed_varints_have_their_known_bytes(value: int, coded: str) -> None:
    assert signed(value).hex() == coded
    assert get_signed(bytes.fromhex(coded), 0) == (value, len(coded) // 2)


@given(uint32, st.binary(max_size=5), st.binary(max_size=5))
def test_an_unsigned_value_comes_back_from_between_other_bytes(
    value: int, before: bytes, after: bytes
) -> None:
    coded = unsigned(value)
    assert 1 <= len(coded) <= 5
    assert get_unsigned(before + coded + after, len(before)) == (value, len(before) + len(coded))


@given(int64, st.binary(max_size=5), st.sampled_from([bytes, bytearray, memoryview]))
def test_a_signed_value_comes_back_from_any_buffer(
    value: int, before: bytes, buffer_type: Callable[[bytes], bytes]
) -> None:
    coded = signed(value)
    assert 1 <= len(coded) <= 10
    buffer = buffer_type(before + coded)
    assert get_signed(buffer, len(before)) == (value, len(before) + len(coded))


@given(int32)
def test_both_widths_write_the_same_bytes_for_the_same_value(value: int) -> None:
    coded = signed(value)
    assert get_signed32(coded, 0) == get_signed(coded, 0) == (value, len(coded))


@given(int64.filter(lambda value: not -1 << 31 <= value < 1 << 31))
def test_a_value_over_32_bits_is_refused_where_32_are_due(value: int) -> None:
    with pytest.raises(ProtocolError, match="more than 32 bits"):
        get_signed32(signed(value), 0)


@pytest.mark.parametrize(
    ("get", "coded"),
    [
        (get_unsigned, "ffffffff10"),  # the 33rd bit
        (get_unsigned, "808080808000"),  # a sixth byte, though it is zero
        (get_signed32, "ffffffff10"),
        (get_signed, "ffffffffffffffffff02"),  # the 65th bit
        (get_signed, "8080808080808080808000"),
    ],
)
def test_too_many_bits_are_refused(get: Getter, coded: str) -> None:
    with pytest.raises(ProtocolError, match="bits"):
        get(bytes.fromhex(coded), 0)


@given(int64)
def test_a_varint_cut_at_any_length_is_refused(value: int) -> None:
    coded = signed(value)
    for end in range(len(coded)):
        with pytest.raises(ProtocolError, match="cut off"):
            get_signed(coded[:end], 0)


@given(uint32)
def test_an_unsigned_varint_cut_at_any_length_is_refused(value: int) -> None:
    coded = unsigned(value)
    for end in range(len(coded)):
        with pytest.raises(ProtocolError, match="cut off"):
            get_unsigned(coded[:end], 0)


@given(st.binary(max_size=12), st.sampled_from([get_unsigned, get_signed, get_signed32]))
def test_any_bytes_give_a_value_or_a_protocol_error(data: bytes, get: Getter) -> None:
    try:
        value, end = get(data, 0)
    except ProtocolError:
        return
    assert 1 <= end <= len(data)
    if get is get_unsigned:
        assert 0 <= value < 1 << 32
    else:
        assert -1 << 63 <= value < 1 << 63


def test_a_value_that_does_not_fit_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        put_unsigned(bytearray(), 1 << 32)
    with pytest.raises(AssertionError):
        put_unsigned(bytearray(), -1)
    with pytest.raises(AssertionError):
        put_signed(bytearray(), 1 << 63)


# Strings and tags

tag_sections = st.dictionaries(st.integers(0, 2**32 - 1), st.binary(max_size=200), max_size=4)


def string_bytes(value):
    out = bytearray(b"before")
    put_nullable_string(out, value)
    return bytes(out[6:])


def tag_bytes(tags):
    out = bytearray(b"before")
    put_tags(out, tags)
    return bytes(out[6:])


@pytest.mark.parametrize(
    ("value", "layout"),
    [(None, "ffff"), ("", "0000"), ("kd", "0002 6b64"), ("\u00e9", "0002 c3a9")],
)
def test_a_nullable_string_has_an_int16_length_and_null_is_minus_one(value, layout):
    assert string_bytes(value) == bytes.fromhex(layout)
    assert get_nullable_string(b"__" + string_bytes(value) + b"__", 2) == (
        value,
        2 + len(bytes.fromhex(layout)),
    )


@settings(deadline=None)
@given(st.none() | st.text(max_size=50))
def test_strings_come_back_and_are_refused_at_every_cut(value):
    raw = string_bytes(value)
    assert get_nullable_string(raw, 0) == (value, len(raw))
    for size in range(len(raw)):
        with pytest.raises(ProtocolError):
            get_nullable_string(raw[:size], 0)


def test_the_longest_string_has_32767_bytes():
    assert get_nullable_string(string_bytes("x" * 32767), 0)[0] == "x" * 32767
    with pytest.raises(ValueError, match="32768 bytes"):
        string_bytes("x" * 32768)


@pytest.mark.parametrize("layout", ["fffe", "8000", "7fff 6b"])
def test_a_string_of_negative_or_lying_length_is_refused(layout):
    with pytest.raises(ProtocolError):
        get_nullable_string(bytes.fromhex(layout), 0)


@settings(deadline=None)
@given(st.binary(max_size=50))
def test_what_is_not_utf_8_is_replaced(raw):
    layout = len(raw).to_bytes(2) + raw
    assert get_nullable_string(layout, 0) == (raw.decode(errors="replace"), len(layout))


def test_what_is_not_utf_8_is_refused_where_its_replacement_would_be_too_long():
    longest = b"a" + b"\xff" * 10_922
    text, _ = get_nullable_string(len(longest).to_bytes(2) + longest, 0)
    assert len(string_bytes(text)) == 2 + 32_767
    for raw in (longest + b"a", b"\xc3\xa9" * 16_383 + b"\xff"):
        with pytest.raises(ProtocolError, match="not UTF-8"):
            get_nullable_string(len(raw).to_bytes(2) + raw, 0)


def test_a_tagged_section_is_ascending_whatever_the_order_in_the_dict():
    layout = "03  00 01 61  05 00  8001 02 6263"
    assert tag_bytes({128: b"bc", 0: b"a", 5: b""}) == bytes.fromhex(layout)


@settings(deadline=None)
@given(tag_sections)
def test_tags_come_back_and_are_refused_at_every_cut(tags):
    raw = tag_bytes(tags)
    assert get_tags(b"__" + raw + b"__", 2) == (tags, 2 + len(raw))
    for size in range(len(raw)):
        with pytest.raises(ProtocolError):
            get_tags(raw[:size], 0)


def test_of_two_equal_tags_the_last_counts():
    assert get_tags(bytes.fromhex("02  07 01 61  07 01 62"), 0) == ({7: b"b"}, 7)


@pytest.mark.parametrize(
    "layout",
    ["ffffffff0f", "05 0000 0000", "01 00 ffffffff07", "01 00 02 61", "01 ffffffffff01 00"],
)
def test_more_tags_or_longer_ones_than_there_are_bytes_are_refused(layout):
    with pytest.raises(ProtocolError):
        get_tags(bytes.fromhex(layout), 0)


def test_refusals_say_what_was_promised_and_what_is_there():
    with pytest.raises(ProtocolError, match="a length of 9 where 3 bytes remain"):
        refuse_length(9, 3)
    with pytest.raises(ProtocolError, match="a count of -2 where 3 bytes remain"):
        refuse_count(-2, 3)
