"""The record codec in plain Python: the reference that `_compiled.py` is tested against.

Both modules have the same functions, with the same outcome for the same input, errors included.
Records that break the format raise `CorruptRecords`, and nothing is allocated from a length before
that many bytes are known to be there. The layout of a record is in `record.py`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from kdist.errors import CorruptRecords, ProtocolError
from kdist.records.batch import HEADER_SIZE, RECORD_SIZE_MIN, BatchHeader, read_header
from kdist.records.record import (
    INT64_MAX,
    INT64_MIN,
    NO_HEADERS,
    BinaryColumn,
    HeaderPairs,
    HeadersRow,
    Record,
    bytes_column,
    check_lengths,
    check_size,
    deltas_column,
    header_key_text,
    headers_column,
    put_headers,
    put_record,
)
from kdist.wire.primitives import Buffer, get_signed, get_signed32


def encode_records(
    values: Sequence[Buffer | None],
    keys: Sequence[Buffer | None] | None = None,
    headers: Sequence[HeadersRow] | None = None,
    timestamps: Sequence[int] | None = None,
    base_timestamp: int = 0,
    room_bytes: int = 0,
) -> bytearray:
    """The body of a batch, after `room_bytes` zero bytes for its header.

    Record i gets offset delta i and `values[i]`. Without a column, keys are null, headers empty, or
    all timestamps `base_timestamp`. Raises `TypeError` for an item that is not a buffer,
    `ValueError` for columns of different lengths or a body of 2 GiB.
    """
    count = len(values)
    check_lengths(count, keys=keys, headers=headers, timestamps=timestamps)
    rows = zip(
        bytes_column(values, "value"),
        [None] * count if keys is None else bytes_column(keys, "key"),
        [NO_HEADERS] * count if headers is None else headers_column(headers),
        [0] * count if timestamps is None else deltas_column(timestamps, base_timestamp),
        strict=True,
    )
    assert room_bytes >= 0
    out = bytearray(room_bytes)
    for offset_delta, (value, key, packed, timestamp_delta) in enumerate(rows):
        put_record(out, timestamp_delta, offset_delta, key, value, packed)
    check_size(len(out))
    return out


def pack_headers(headers: object) -> bytes | None:
    """A record's headers encoded, which `encode_records` accepts as a row of headers.

    None unless they have the usual type, a list or tuple of (str, bytes or None) tuples:
    `encode_records` then decides whether they can be sent. `UnicodeEncodeError` for a key that
    UTF-8 cannot encode.
    """
    if type(headers) is not list and type(headers) is not tuple:
        return None
    pairs = []
    for pair in headers:
        if type(pair) is not tuple or len(pair) != 2 or type(pair[0]) is not str:
            return None
        if pair[1] is not None and type(pair[1]) is not bytes:
            return None
        pairs.append((pair[0].encode(), pair[1]))
    return bytes(put_headers(pairs))


def decode_records(
    body: Buffer,
    count: int,
    base_offset: int = 0,
    base_timestamp: int = 0,
    append_timestamp: int | None = None,
) -> list[Record]:
    """The `count` records that `body` must hold exactly, with their offsets as stored.

    `append_timestamp` replaces every record's own, for a batch with log append time.
    """
    records = []
    for fields in _iter_fields(body, count):
        timestamp = append_timestamp
        if timestamp is None:
            timestamp = _fit(base_timestamp + fields.timestamp_delta, "timestamp")
        offset = _fit(base_offset + fields.offset_delta, "offset")
        records.append(Record(offset, timestamp, fields.key, fields.value, _headers(fields)))
    return records


def decode_values(body: Buffer, count: int, is_span: bool = False) -> list[bytes | None]:
    """Only the values of the `count` records; all other fields are checked too.

    `is_span`: `body` is whole batches with their headers, as `spans.find_plain_span` finds them.
    """
    return [fields.value for fields in _iter_fields(body, count, is_span)]


def decode_keys(body: Buffer, count: int, is_span: bool = False) -> list[bytes | None]:
    """As `decode_values`, but the keys."""
    return [fields.key for fields in _iter_fields(body, count, is_span)]


def decode_headers(body: Buffer, count: int, is_span: bool = False) -> list[HeaderPairs]:
    """As `decode_values`, but the headers."""
    return [_headers(fields) for fields in _iter_fields(body, count, is_span)]


def _headers(fields: _Fields) -> HeaderPairs:
    return tuple((header_key_text(key), value) for key, value in fields.headers)


def decode_values_into(column: BinaryColumn, body: Buffer, count: int) -> None:
    """Append what `decode_values` returns to the column; an error leaves it as it was."""
    _add(column, decode_values(body, count))


def decode_keys_into(column: BinaryColumn, body: Buffer, count: int) -> None:
    """As `decode_values_into`, but the keys."""
    _add(column, decode_keys(body, count))


def _add(column: BinaryColumn, items: list[bytes | None]) -> None:
    check_size(column.ends[-1] + sum(len(item or b"") for item in items))
    for row, item in enumerate(items, len(column)):
        column.data += item or b""
        column.ends.append(len(column.data))
        if not row % 8:
            column.present.append(0xFF)
        if item is None:
            column.present[-1] &= ~(1 << row % 8)
            column.null_count += 1


def decode_numbers(
    body: Buffer,
    count: int,
    base_offset: int = 0,
    base_timestamp: int = 0,
    append_timestamp: int | None = None,
    is_span: bool = False,
) -> tuple[array[int], array[int]]:
    """The offsets and timestamps of the records, int64, as in `decode_records`.

    For a span (see `decode_values`) the batches' own headers give the bases.
    """
    records = []
    if is_span:
        for header, own in _iter_batches(memoryview(body), count):
            appended = header.max_timestamp if header.is_log_append_time else None
            bases = header.base_offset, header.base_timestamp, appended
            records += decode_records(own, header.record_count, *bases)
    else:
        records = decode_records(body, count, base_offset, base_timestamp, append_timestamp)
    offsets = array("q", [record.offset for record in records])
    return offsets, array("q", [record.timestamp for record in records])


def running_sizes(
    values: list[bytes | None], keys: list[bytes | None] | None, overhead_bytes: int
) -> array[int] | None:
    """The total size of the records before each index, and at the end that of all: count + 1 sums.

    A record's size is that of its key and value, plus `overhead_bytes`. None if any of them is
    neither bytes nor None. `ValueError` for columns of different lengths.
    """
    check_lengths(len(values), keys=keys)
    columns = (values,) if keys is None else (values, keys)
    if not all(item is None or isinstance(item, bytes) for column in columns for item in column):
        return None
    sizes = (
        overhead_bytes + sum(bytes.__len__(item) for item in row if item is not None)
        for row in zip(*columns, strict=True)
    )
    return array("q", accumulate(sizes, initial=0))


def find_null_key(body: Buffer, count: int) -> int | None:
    """The index of the first record without a key; None if all have one.

    All records are checked as by `decode_values`, also those after the one found.
    """
    keyless = [
        index for index, fields in enumerate(_iter_fields(body, count)) if fields.key is None
    ]
    return keyless[0] if keyless else None


class _Fields(NamedTuple):
    """A record's fields as encoded."""

    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


def _iter_fields(body: Buffer, count: int, is_span: bool = False) -> Iterator[_Fields]:
    """Each record's fields; raises `CorruptRecords` at the first that breaks the format."""
    size = len(body)
    if not 0 <= count <= size // RECORD_SIZE_MIN:
        raise CorruptRecords(f"{count} records do not fit in {size} bytes")
    view = memoryview(body)
    if is_span:
        for header, own in _iter_batches(view, count):
            yield from _iter_fields(own, header.record_count)
        return
    position, previous = 0, -1
    for _ in range(count):
        try:
            length, position = get_signed32(view, position)
            if not 0 <= length <= size - position:
                raise CorruptRecords(f"a record of {length} bytes at byte {position} of {size}")
            fields = _read_fields(view[position : position + length])
        except ProtocolError as error:
            raise CorruptRecords(str(error)) from None
        if fields.offset_delta <= previous:
            raise CorruptRecords(f"offset delta {fields.offset_delta} does not follow {previous}")
        previous = fields.offset_delta
        position += length
        yield fields
    if position != size:
        raise CorruptRecords(f"{size - position} bytes are left behind {count} records")


def _iter_batches(run: memoryview, count: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The header and body of each batch in a span, which must have `count` records in all."""
    at = found = 0
    while at < len(run):
        header = read_header(run, at)
        if not HEADER_SIZE <= header.size <= len(run) - at or header.record_count <= 0:
            raise CorruptRecords(f"no batch is at byte {at} of a span")
        yield header, run[at + HEADER_SIZE : at + header.size]
        at += header.size
        found += header.record_count
    if found != count:
        raise CorruptRecords(f"a span has {found} records, not {count}")


def _read_fields(record: memoryview) -> _Fields:
    timestamp_delta, position = get_signed(record, 1)
    offset_delta, position = get_signed32(record, position)
    key, position = _get_bytes(record, position)
    value, position = _get_bytes(record, position)
    headers, position = _get_headers(record, position)
    if position != len(record):
        raise CorruptRecords(f"a record of {len(record)} bytes ends at its byte {position}")
    return _Fields(timestamp_delta, offset_delta, key, value, headers)


def _get_headers(record: memoryview, position: int) -> tuple[list[tuple[bytes, bytes | None]], int]:
    count, position = get_signed32(record, position)
    if count < 0:
        raise CorruptRecords(f"a record has {count} headers")
    headers = []
    for _ in range(count):  # each takes at least a byte, so a false count soon reaches the end
        key, position = _get_bytes(record, position)
        value, position = _get_bytes(record, position)
        if key is None:
            raise CorruptRecords("a header has no key")
        headers.append((key, value))
    return headers, position


def _get_bytes(record: memoryview, position: int) -> tuple[bytes | None, int]:
    size, position = get_signed32(record, position)
    if size == -1:
        return None, position
    if not 0 <= size <= len(record) - position:
        raise CorruptRecords(f"a field of {size} bytes at byte {position} of {len(record)}")
    return bytes(record[position : position + size]), position + size


def _fit(value: int, what: str) -> int:
    if INT64_MIN <= value <= INT64_MAX:
        return value
    raise CorruptRecords(f"a record's {what} of {value} has more than 64 bits")
