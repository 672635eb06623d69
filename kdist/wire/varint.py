"""Varints: integers of variable length, seven bits a byte, lowest first, high bit for "more".

Unsigned varints (32 bit, 1 to 5 bytes) are the lengths and tags of flexible versions. Signed ones
are zigzag-coded first (0, -1, 1, -2 become 0, 1, 2, 3), so that small negative numbers stay short:
records consist of them, as `varint` (32 bit, 1 to 5 bytes) and `varlong` (64 bit, 1 to 10 bytes).
The same value has the same bytes in both widths; readers differ in what they refuse.

Source: KIP-482 (unsigned), KIP-98 (records).
"""

from __future__ import annotations

from kdist.errors import ProtocolError

Buffer = bytes | bytearray | memoryview


def put_unsigned(out: bytearray, value: int) -> None:
    """Append `value`, 0 to 2**32 - 1."""
    assert 0 <= value < 1 << 32, value
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_signed(out: bytearray, value: int) -> None:
    """Append a signed 64-bit `value`, zigzag-coded: the same bytes as varint and varlong."""
    assert -1 << 63 <= value < 1 << 63, value
    value = value << 1 if value >= 0 else ~(value << 1)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def get_unsigned(buffer: Buffer, position: int) -> tuple[int, int]:
    """The 32-bit value at `position`, and the position after it.

    Raises `ProtocolError` if the buffer ends within it or it has more than 32 bits.
    """
    try:
        value = buffer[position]
    except IndexError:
        raise ProtocolError("a varint is cut off by the end of its buffer") from None
    if value < 0x80:  # nearly all lengths and tag counts are this short
        return value, position + 1
    return _get_long(buffer, position, 32)


def get_signed(buffer: Buffer, position: int) -> tuple[int, int]:
    """The 64-bit `varlong` at `position`, and the position after it; raises as `get_unsigned`."""
    value, position = _get_long(buffer, position, 64)
    return value >> 1 ^ -(value & 1), position


def get_signed32(buffer: Buffer, position: int) -> tuple[int, int]:
    """The 32-bit `varint` at `position`, and the position after it; raises as `get_unsigned`."""
    value, position = get_unsigned(buffer, position)
    return value >> 1 ^ -(value & 1), position


def _get_long(buffer: Buffer, position: int, bits: int) -> tuple[int, int]:
    value = shift = 0
    while shift < bits:
        try:
            byte = buffer[position]
        except IndexError:
            raise ProtocolError("a varint is cut off by the end of its buffer") from None
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 and not value >> bits:
            return value, position
        shift += 7
    raise ProtocolError(f"a varint has more than {bits} bits")
