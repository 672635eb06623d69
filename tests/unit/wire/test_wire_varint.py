"""Varints: every value comes back, in the published bytes, and nothing else passes for one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import ProtocolError
from kdist.wire.varint import (
    get_signed,
    get_signed32,
    get_unsigned,
    put_signed,
    put_unsigned,
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
