"""Nullable strings and tagged sections, by their bytes and at every cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdist.errors import ProtocolError
from kdist.wire.primitives import (
    get_nullable_string,
    get_tags,
    put_nullable_string,
    put_tags,
    refuse_count,
    refuse_length,
)

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
