"""Primitive values and their bytes: varints, strings, tagged sections; the errors of all decoders.

    string, nullable     length int16 (-1 is null) | UTF-8
    tagged section       count uvarint | { tag uvarint | size uvarint | bytes }, tags ascending
    uvarint              1 to 5 bytes (32 bit): lengths and tags of flexible versions
    varint, varlong      1 to 5 bytes (32 bit), 1 to 10 (64 bit): what records consist of

A varint has seven bits a byte, lowest first, high bit for "more". Signed ones are zigzag-coded
first (0, -1, 1, -2 become 0, 1, 2, 3), so that small negative numbers stay short. The same value
has the same bytes in both widths; readers differ in what they refuse.

The codecs that `protocol` compiles read strings and numbers inline, and call these functions for
rare cases. `get_` functions return the value and the position after it, and raise `ProtocolError`;
they check each length against the bytes that remain before they use it.

Sources: the Kafka protocol guide, "Protocol primitive types"; KIP-482 (flexible), KIP-98 (records).
"""

from __future__ import annotations

import struct
from typing import NoReturn

from kdist.errors import ProtocolError

Buffer = bytes | bytearray | memoryview
BUFFERS = (bytes, bytearray, memoryview)  # for `isinstance`, which takes longer with the union

STRING_BYTES_MAX = 0x7FFF  # the largest length that an int16 can hold
_TAGS_MAX = 256  # in one section; Kafka's messages have at most a handful

_INT16 = struct.Struct(">h")


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


def put_nullable_string(out: bytearray, value: str | None) -> None:
    """Append `value` with its int16 length; ValueError beyond 32767 bytes."""
    if value is None:
        out += b"\xff\xff"
        return
    raw = value.encode()
    if len(raw) > STRING_BYTES_MAX:
        raise ValueError(f"a string of {len(raw)} bytes does not fit an int16 length")
    out += _INT16.pack(len(raw))
    out += raw


def get_nullable_string(buffer: Buffer, position: int) -> tuple[str | None, int]:
    """The string at `position`; None for length -1."""
    start = position + 2
    if start > len(buffer):
        refuse_length(2, len(buffer) - position)
    (size,) = _INT16.unpack_from(buffer, position)
    if size == -1:
        return None, start
    end = start + size
    if not start <= end <= len(buffer):
        refuse_length(size, len(buffer) - start)
    try:
        return str(buffer[start:end], "utf-8"), end
    except UnicodeDecodeError as error:
        return replaced(error), end


def replaced(error: UnicodeDecodeError) -> str:
    """A string that is not UTF-8, with U+FFFD, as in Kafka: a group may have a name in Latin-1.

    Its three bytes may replace a single one. Invariant: no string that was read is too long to be
    written again.
    """
    text = error.object.decode(errors="replace")
    if len(text.encode()) > STRING_BYTES_MAX:
        raise ProtocolError(f"a string too long to mend is not UTF-8: {error.reason}") from None
    return text


def put_tags(out: bytearray, tags: dict[int, bytes]) -> None:
    """Append a tagged section; `tags` maps each tag to the bytes of its field."""
    put_unsigned(out, len(tags))
    for tag in sorted(tags):
        put_unsigned(out, tag)
        put_unsigned(out, len(tags[tag]))
        out += tags[tag]


def get_tags(buffer: Buffer, position: int) -> tuple[dict[int, bytes], int]:
    """The tagged section at `position`, as a dict from tag to the bytes of its field.

    As in Kafka, tags may come in any order, and the last of two equal ones counts.
    """
    tags: dict[int, bytes] = {}
    count, position = get_unsigned(buffer, position)
    if 2 * count > len(buffer) - position:
        refuse_count(count, len(buffer) - position)
    if count > _TAGS_MAX:
        refuse_entries(count)
    for _ in range(count):
        tag, position = get_unsigned(buffer, position)
        size, position = get_unsigned(buffer, position)
        end = position + size
        if end > len(buffer):
            refuse_length(size, len(buffer) - position)
        tags[tag] = bytes(buffer[position:end])
        position = end
    return tags, position


def refuse_string(size: int) -> NoReturn:
    """A string is longer than an int16 can say, which Kafka allows in no field."""
    raise ProtocolError(f"a string of {size} bytes, where {STRING_BYTES_MAX} are the most")


def refuse_length(size: int, remaining: int) -> NoReturn:
    """A length is negative, null where null is not allowed, or larger than what is left."""
    raise ProtocolError(f"a length of {size} where {remaining} bytes remain")


def refuse_entries(count: int) -> NoReturn:
    """A count that no honest peer has need of."""
    raise ProtocolError(f"a count of {count} is too large")


def refuse_count(count: int, remaining: int) -> NoReturn:
    """A count is negative, null where null is not allowed, or too large for what is left."""
    raise ProtocolError(f"a count of {count} where {remaining} bytes remain")
