"""A record as the codec gives and takes it, and what both codecs do to an application's columns.

One record in a batch's body, signed varints but where it says so:

    length of all that follows
        attributes, int8, unused
        timestamp delta, 64 bit          from the batch's base timestamp
        offset delta                     from its base offset
        key length, -1 null              key
        value length, -1 null            value
        header count                     then of each header:
            key length                   key, meant to be UTF-8
            value length, -1 null        value

Source: KIP-98, KIP-82 (headers).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kdist.wire.varint import Buffer, put_signed

BATCH_BYTES_MAX = 0x7FFF_FFFF
NO_HEADERS = b"\0"  # as they stand in a record
INT64_MIN, INT64_MAX = -1 << 63, (1 << 63) - 1

Headers = Sequence[tuple[str, Buffer | None]]
"""A record's headers in order; a key may come more than once."""

HeadersRow = Headers | bytes
"""The same to be encoded, or as `pack_headers` gives them."""

HeaderPairs = tuple[tuple[str, bytes | None], ...]
"""The same as the codec gives them."""


class Record(NamedTuple):
    """One record. `timestamp` is ms since the epoch, -1 for none; null and empty bytes differ."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: HeaderPairs = ()


class BinaryColumn:
    """Keys or values of records as Arrow lays out a column of bytes; the codec adds to it."""

    __slots__ = ("data", "ends", "null_count", "present")

    def __init__(self) -> None:
        self.data = bytearray()  # all of them, one behind the other
        self.ends = array("i", [0])  # int32: where in `data` each ends, behind a 0
        self.present = bytearray()  # a bit for each, the lowest first, 0 for null; 1 behind the end
        self.null_count = 0

    def __len__(self) -> int:
        return len(self.ends) - 1


def check_lengths(count: int, **columns: Sequence[object] | None) -> None:
    """`ValueError` unless every column beside the values, by its name, has as many rows as they."""
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise ValueError(f"there are {len(column)} {name} for {count} values")


def check_size(size_bytes: int) -> None:
    """`ValueError` when a body, with the room before it, is more than a batch's length can say."""
    if size_bytes > BATCH_BYTES_MAX:
        raise ValueError(f"{size_bytes} bytes of records are more than one batch holds")


def bytes_column(column: Iterable[Buffer | None], what: str) -> list[bytes | None]:
    """The column with every buffer as bytes; `TypeError` names the row that is none."""
    return [_as_bytes(item, what, index) for index, item in enumerate(column)]


def headers_column(column: Iterable[HeadersRow]) -> list[bytes]:
    """Each record's headers as they stand in it, their count first.

    `TypeError` names the record that has another type there.
    """
    return [
        headers
        if type(headers) is bytes and headers
        else bytes(put_headers([_as_pair(pair, index) for pair in headers]))
        for index, headers in enumerate(column)
    ]


def put_headers(pairs: Sequence[tuple[bytes, bytes | None]]) -> bytearray:
    """A record's headers as they stand in it."""
    out = bytearray()
    put_signed(out, len(pairs))
    for name, data in pairs:
        put_bytes(out, name)
        put_bytes(out, data)
    return out


def put_bytes(out: bytearray, data: bytes | None) -> None:
    """Add a length, -1 for null, and what it is the length of."""
    if data is None:
        put_signed(out, -1)
    else:
        put_signed(out, len(data))
        out += data


def deltas_column(timestamps: Iterable[int], base_timestamp: int) -> list[int]:
    """Timestamps as deltas; `TypeError` or `ValueError` names the one that is no 64-bit integer."""
    deltas = []
    for index, timestamp in enumerate(timestamps):
        if not isinstance(timestamp, int):
            raise TypeError(f"timestamp {index} is of type {type(timestamp).__name__}, not int")
        delta = int.__sub__(timestamp, base_timestamp)  # a plain int, whatever the subclass does
        if not INT64_MIN <= timestamp <= INT64_MAX or not INT64_MIN <= delta <= INT64_MAX:
            raise ValueError(f"timestamp {index}, or its delta from the first, is over 64 bits")
        deltas.append(delta)
    return deltas


def header_key_text(key: bytes) -> str:
    """A header's key off the wire, with U+FFFD for what is not UTF-8, as Java's clients show it.

    Not refused: C's clients send any bytes as a key, brokers take them, and a consumer that stops
    there would never get past that record.
    """
    return key.decode(errors="replace")


def _as_bytes(item: object, what: str, index: int) -> bytes | None:
    if item is None or isinstance(item, bytes):
        return item
    if isinstance(item, bytearray | memoryview):
        return bytes(item)
    raise TypeError(f"{what} {index} is of type {type(item).__name__}, not bytes or None")


def _as_pair(header: Any, index: int) -> tuple[bytes, bytes | None]:
    key, value = header
    if not isinstance(key, str):
        raise TypeError(
            f"the header key of record {index} is of type {type(key).__name__}, not str"
        )
    return key.encode(), _as_bytes(value, "the header value of record", index)
