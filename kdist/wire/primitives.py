"""Strings and tagged sections by hand, and the refusals that every decoder shares.

    string, nullable     length int16 (-1 is null) | UTF-8
    tagged section       count uvarint | { tag uvarint | size uvarint | bytes }, tags ascending

The codecs that `protocol` compiles have strings and numbers inlined; what is rare, they call here.
`get_` functions give the value and the position behind it, and raise `ProtocolError`; they compare
each length with the bytes that remain before they make anything from it.

What is not UTF-8 is read with U+FFFD in its place, as Kafka reads it: a group may have a name in
Latin-1. Invariant: no string that was read is too long to be written again.

Source: the Apache Kafka protocol guide, "Protocol primitive types"; KIP-482 (tagged fields).
"""

from __future__ import annotations

import struct
from typing import NoReturn

from kdist.errors import ProtocolError
from kdist.wire.varint import Buffer, get_unsigned, put_unsigned

STRING_BYTES_MAX = 0x7FFF  # what the plain form's length can say

_INT16 = struct.Struct(">h")


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
    """The string that is not UTF-8; U+FFFD has three bytes, where what it is for may have one."""
    text = error.object.decode(errors="replace")
    if len(text.encode()) > STRING_BYTES_MAX:
        raise ProtocolError(f"a string too long to mend is not UTF-8: {error.reason}") from None
    return text


def put_tags(out: bytearray, tags: dict[int, bytes]) -> None:
    """Append a tagged section with `tags`, from tag to the bytes of its field."""
    put_unsigned(out, len(tags))
    for tag in sorted(tags):
        put_unsigned(out, tag)
        put_unsigned(out, len(tags[tag]))
        out += tags[tag]


def get_tags(buffer: Buffer, position: int) -> tuple[dict[int, bytes], int]:
    """The tagged section at `position`, from tag to the bytes of its field.

    As Kafka does, this takes tags in any order, and the last of two equal ones.
    """
    tags: dict[int, bytes] = {}
    count, position = get_unsigned(buffer, position)
    if 2 * count > len(buffer) - position:
        refuse_count(count, len(buffer) - position)
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
    """A string is longer than the plain form could say: no field of Kafka's may be."""
    raise ProtocolError(f"a string of {size} bytes, where {STRING_BYTES_MAX} are the most")


def refuse_length(size: int, remaining: int) -> NoReturn:
    """A length is negative, null where null is not allowed, or more than what is left."""
    raise ProtocolError(f"a length of {size} where {remaining} bytes remain")


def refuse_count(count: int, remaining: int) -> NoReturn:
    """An array's count is negative, null where null is not allowed, or cannot fit what is left."""
    raise ProtocolError(f"a count of {count} where {remaining} bytes remain")
