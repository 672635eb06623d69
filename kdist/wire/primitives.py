"""Strings and tagged sections, and the errors that all decoders share.

    string, nullable     length int16 (-1 is null) | UTF-8
    tagged section       count uvarint | { tag uvarint | size uvarint | bytes }, tags ascending

The codecs that `protocol` compiles read strings and numbers inline, and call these functions for
rare cases. `get_` functions return the value and the position after it, and raise `ProtocolError`;
they check each length against the bytes that remain before they use it.

Bytes that are not UTF-8 are decoded as U+FFFD, as in Kafka: a group may have a name in Latin-1.
Invariant: no string that was read is too long to be written again.

Source: the Apache Kafka protocol guide, "Protocol primitive types"; KIP-482 (tagged fields).
"""

from __future__ import annotations

import struct
from typing import NoReturn

from kdist.errors import ProtocolError
from kdist.wire.varint import Buffer, get_unsigned, put_unsigned

STRING_BYTES_MAX = 0x7FFF  # the largest length that an int16 can hold
_TAGS_MAX = 256  # in one section; Kafka's messages have at most a handful

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
    """A string that is not UTF-8, with U+FFFD: its three bytes may replace a single one."""
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
