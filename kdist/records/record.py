"""A record as the codec returns it, and the checks on an application's columns before encoding.

One record in a batch's body, in signed varints unless noted:

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

from kdist.errors import WrongType
from kdist.wire.primitives import Buffer, put_signed

BATCH_BYTES_MAX = 0x7FFF_FFFF
NO_HEADERS = b"\0"  # the encoded header count of a record without headers
INT64_MIN, INT64_MAX = -1 << 63, (1 << 63) - 1

Headers = Sequence[tuple[str, Buffer | None]]
"""A record's headers in order; keys may repeat."""

HeadersRow = Headers | bytes
"""A record's headers to be encoded, or encoded already by `pack_headers`."""

HeaderPairs = tuple[tuple[str, bytes | None], ...]
"""A record's headers as the codec decodes them."""


class Record(NamedTuple):
    """One record. `timestamp` is ms since the epoch, -1 for none; None differs from empty bytes."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: HeaderPairs = ()


class BinaryColumn:
    """Keys or values of records in Arrow's layout of a binary column; the codec appends to it."""

    __slots__ = ("data", "ends", "null_count", "present")

    def __init__(self) -> None:
        self.data = bytearray()  # all items, concatenated
        self.ends = array("i", [0])  # int32: a 0, then where in `data` each item ends
        self.present = bytearray()  # a bit for each item, lowest first, 0 for null; padded with 1
        self.null_count = 0

    def __len__(self) -> int:
        return len(self.ends) - 1


def check_lengths(count: int, **columns: Sequence[object] | None) -> None:
    """`ValueError` unless every other column, given by name, has as many rows as the values."""
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise ValueError(f"there are {len(column)} {name} for {count} values")


def check_size(size_bytes: int) -> None:
    """`ValueError` if a batch of `size_bytes` is too large for its length field."""
    if size_bytes > BATCH_BYTES_MAX:
        raise ValueError(f"{size_bytes} bytes of records are more than one batch holds")


def bytes_column(column: Iterable[Buffer | None], what: str) -> list[bytes | None]:
    """The column with every buffer as bytes; `WrongType` names a row that is neither."""
    return [_as_bytes(item, what, index) for index, item in enumerate(column)]


def headers_column(column: Iterable[HeadersRow]) -> list[bytes]:
    """Each record's headers encoded, their count first.

    `WrongType` names a record whose headers have another type.
    """
    return [
        headers
        if type(headers) is bytes and headers
        else bytes(put_headers([_as_pair(pair, index) for pair in headers]))
        for index, headers in enumerate(column)
    ]


def put_record(
    out: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Buffer,
) -> None:
    """Append a record, whose headers are encoded already."""
    record = bytearray(1)  # attributes
    put_signed(record, timestamp_delta)
    put_signed(record, offset_delta)
    put_bytes(record, key)
    put_bytes(record, value)
    record += headers
    put_signed(out, len(record))
    out += record


def put_headers(pairs: Sequence[tuple[bytes, bytes | None]]) -> bytearray:
    """A record's headers encoded, their count first."""
    out = bytearray()
    put_signed(out, len(pairs))
    for name, data in pairs:
        put_bytes(out, name)
        put_bytes(out, data)
    return out


def put_bytes(out: bytearray, data: bytes | None) -> None:
    """Append a length, -1 for null, and the bytes."""
    if data is None:
        put_signed(out, -1)
    else:
        put_signed(out, len(data))
        out += data


def deltas_column(timestamps: Iterable[int], base_timestamp: int) -> list[int]:
    """Timestamps as deltas; `WrongType` or `ValueError` names one that is not a 64-bit integer."""
    deltas = []
    for index, timestamp in enumerate(timestamps):
        if not isinstance(timestamp, int):
            raise WrongType(f"timestamp {index} is of type {type(timestamp).__name__}, not int")
        delta = int.__sub__(timestamp, base_timestamp)  # a plain int, whatever the subclass does
        if not INT64_MIN <= timestamp <= INT64_MAX or not INT64_MIN <= delta <= INT64_MAX:
            raise ValueError(f"timestamp {index}, or its delta from the first, is over 64 bits")
        deltas.append(delta)
    return deltas


def header_key_text(key: bytes) -> str:
    """A header's key as text, with U+FFFD for what is not UTF-8, as Java's clients show it.

    It is not an error: C clients send any bytes as a key, brokers accept them, and a consumer that
    raised here could never get past that record.
    """
    return key.decode(errors="replace")


def _as_bytes(item: object, what: str, index: int) -> bytes | None:
    if item is None or isinstance(item, bytes):
        return item
    if isinstance(item, bytearray | memoryview):
        return bytes(item)
    raise WrongType(f"{what} {index} is of type {type(item).__name__}, not bytes or None")


def _as_pair(header: Any, index: int) -> tuple[bytes, bytes | None]:
    key, value = header
    if not isinstance(key, str):
        raise WrongType(
            f"the header key of record {index} is of type {type(key).__name__}, not str"
        )
    return key.encode(), _as_bytes(value, "the header value of record", index)
