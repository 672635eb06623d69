# cython: boundscheck=False, wraparound=False
# ruff: noqa: F821 - an annotation alone declares a C variable
"""The record codec again, for Cython to compile: the functions of `_reference.py`, far faster.

The format is told there and in `record.py`; here stands how it is done without the interpreter.
Encoding measures all records, allocates once, and writes. Decoding moves a cursor that cannot leave
its record: every read asks first whether the bytes are there, and a fault, once noted in the
cursor, makes the rest of the record read as zeros, and is asked for once at its end.

Invariant: no Python code runs between measuring and writing, and the columns are copied into lists
of plain items that nobody else holds, so that what was measured is what is written.
"""

from __future__ import annotations

import cython

if not cython.compiled:
    raise ImportError("the compiled record codec has not been built")

from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
from cython.cimports.libc.string import memcpy, memset

from kdist.errors import CorruptRecords
from kdist.records._compiled_columns import bytes_rows, delta_rows
from kdist.records._compiled_columns import running_sizes as running_sizes
from kdist.records.batch import RECORD_SIZE_MIN
from kdist.records.record import (
    INT64_MAX,
    INT64_MIN,
    Record,
    check_lengths,
    check_size,
    header_key_text,
    headers_column,
)

_Pointer = cython.typedef(cython.p_uchar)
_Size = cython.typedef(cython.Py_ssize_t)
_Long = cython.typedef(cython.longlong)

_RECORD_SIZE_MIN = cython.declare(_Size, RECORD_SIZE_MIN)
_INT64_MIN = cython.declare(_Long, INT64_MIN)
_INT64_MAX = cython.declare(_Long, INT64_MAX)
_Record = cython.declare(object, Record)
_new_tuple = cython.declare(object, tuple.__new__)


def encode_records(
    values: object,
    keys: object = None,
    headers: object = None,
    timestamps: object = None,
    base_timestamp: object = 0,
    room_bytes: _Size = 0,
) -> bytearray:
    """As `_reference.encode_records`: under 50 ns for a record of 100 bytes and nothing else."""
    rows: list = bytes_rows(values, "value")
    count: _Size = len(rows)
    check_lengths(count, keys=keys, headers=headers, timestamps=timestamps)
    if keys is None and headers is None and timestamps is None:
        return _encode(rows, None, None, None, room_bytes)
    return _encode(
        rows,
        [None] * count if keys is None else bytes_rows(keys, "key"),
        [()] * count if headers is None else headers_column(headers),
        [0] * count if timestamps is None else delta_rows(timestamps, base_timestamp),
        room_bytes,
    )


@cython.cfunc
def _encode(
    values: list, keys: list | None, headers: list | None, deltas: list | None, room_bytes: _Size
) -> bytearray:
    assert room_bytes >= 0
    size: _Size = room_bytes
    is_plain: cython.bint = keys is None
    record_size: _Size
    i: _Size
    for i in range(len(values)):
        if is_plain:
            record_size = _record_size(i, 0, None, values[i], ())
        else:
            record_size = _record_size(i, deltas[i], keys[i], values[i], headers[i])
        size += _varint_size(record_size) + record_size
    check_size(size)
    out: bytearray = PyByteArray_FromStringAndSize(cython.NULL, size)
    at: _Pointer = cython.cast(_Pointer, PyByteArray_AS_STRING(out))
    memset(at, 0, room_bytes)
    at += room_bytes
    for i in range(len(values)):
        if is_plain:
            at = _put_record(at, i, 0, None, values[i], ())
        else:
            at = _put_record(at, i, deltas[i], keys[i], values[i], headers[i])
    assert at == cython.cast(_Pointer, PyByteArray_AS_STRING(out)) + size
    return out


@cython.cfunc
@cython.inline
def _record_size(offset_delta: _Size, timestamp_delta: _Long, key, value, headers: tuple) -> _Size:
    size: _Size = 1 + _varint_size(timestamp_delta) + _varint_size(offset_delta)
    size += _bytes_size(key) + _bytes_size(value) + _varint_size(len(headers) // 2)
    for data in headers:
        size += _bytes_size(data)
    return size


@cython.cfunc
@cython.inline
def _put_record(
    at: _Pointer, offset_delta: _Size, timestamp_delta: _Long, key, value, headers: tuple
) -> _Pointer:
    at = _put_varint(at, _record_size(offset_delta, timestamp_delta, key, value, headers))
    at[0] = 0  # attributes
    at = _put_varint(at + 1, timestamp_delta)
    at = _put_varint(at, offset_delta)
    at = _put_bytes(at, key)
    at = _put_bytes(at, value)
    at = _put_varint(at, len(headers) // 2)
    for data in headers:
        at = _put_bytes(at, data)
    return at


@cython.cfunc
@cython.inline
def _bytes_size(data: object) -> _Size:
    if data is None:
        return 1
    return _varint_size(PyBytes_GET_SIZE(data)) + PyBytes_GET_SIZE(data)


@cython.cfunc
@cython.inline
def _put_bytes(at: _Pointer, data: object) -> _Pointer:
    if data is None:
        return _put_varint(at, -1)
    at = _put_varint(at, PyBytes_GET_SIZE(data))
    memcpy(at, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return at + PyBytes_GET_SIZE(data)


@cython.cfunc
@cython.inline
def _zigzag(value: _Long) -> cython.ulonglong:
    unsigned: cython.ulonglong = value
    return ~(unsigned << 1) if value < 0 else unsigned << 1


@cython.cfunc
@cython.inline
def _varint_size(value: _Long) -> _Size:
    left: cython.ulonglong = _zigzag(value)
    size: _Size = 1
    while left > 0x7F:
        left >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
def _put_varint(at: _Pointer, value: _Long) -> _Pointer:
    left: cython.ulonglong = _zigzag(value)
    while left > 0x7F:
        at[0] = left & 0x7F | 0x80
        at += 1
        left >>= 7
    at[0] = left
    return at + 1


_Cursor = cython.struct(
    at=_Pointer,
    end=_Pointer,  # of the record being read; between records, of the body
    offset_delta=_Long,  # of the record before
    fault=cython.p_char,  # why it cannot go on, or NULL
)

_Fields = cython.struct(
    offset_delta=_Long,
    timestamp_delta=_Long,
    key=_Pointer,
    key_size=_Long,  # -1 null
    value=_Pointer,
    value_size=_Long,
    header_count=_Long,
    headers=_Cursor,
)


def decode_records(
    body: cython.const[cython.uchar][::1],
    count: _Size,
    base_offset: _Long = 0,
    base_timestamp: _Long = 0,
    append_timestamp: object = None,
) -> list:
    """As `_reference.decode_records`: under 250 ns for a record of 100 bytes."""
    cursor: _Cursor = _start(body, count)
    fields: _Fields
    records: list = []
    timestamp: object = append_timestamp
    for _ in range(count):
        fields = _next(cython.address(cursor))
        if append_timestamp is None:
            timestamp = _sum(base_timestamp, fields.timestamp_delta, "timestamp")
        offset = _sum(base_offset, fields.offset_delta, "offset")
        key = _bytes(fields.key, fields.key_size)
        value = _bytes(fields.value, fields.value_size)
        headers = _headers(fields.headers, fields.header_count) if fields.header_count else ()
        # Half of the time. Filling a tuple of this class by hand would save a third of it, and
        # leave its cached hash unset in Python 3.14.
        records.append(_new_tuple(_Record, (offset, timestamp, key, value, headers)))
    _finish(cursor, count)
    return records


def decode_values(body: cython.const[cython.uchar][::1], count: _Size) -> list:
    """As `_reference.decode_values`."""
    cursor: _Cursor = _start(body, count)
    fields: _Fields
    values: list = []
    for _ in range(count):
        fields = _next(cython.address(cursor))
        values.append(_bytes(fields.value, fields.value_size))
    _finish(cursor, count)
    return values


def find_null_key(body: cython.const[cython.uchar][::1], count: _Size) -> object:
    """As `_reference.find_null_key`; makes no objects."""
    cursor: _Cursor = _start(body, count)
    found: object = None
    i: _Size
    for i in range(count):
        if _next(cython.address(cursor)).key_size < 0 and found is None:
            found = i
    _finish(cursor, count)
    return found


@cython.cfunc
def _start(body: cython.const[cython.uchar][::1], count: _Size) -> _Cursor:
    cursor: _Cursor
    if not 0 <= count <= body.shape[0] // _RECORD_SIZE_MIN:
        raise CorruptRecords(f"{count} records do not fit in {body.shape[0]} bytes")
    cursor.at = cython.cast(_Pointer, cython.address(body[0]))
    cursor.end = cursor.at + body.shape[0]
    cursor.offset_delta = -1
    cursor.fault = cython.NULL
    return cursor


@cython.cfunc
def _finish(cursor: _Cursor, count: _Size) -> object:
    if cursor.at != cursor.end:
        raise CorruptRecords(f"{cursor.end - cursor.at} bytes are left behind {count} records")


@cython.cfunc
def _next(cursor: cython.pointer[_Cursor]) -> _Fields:
    """The fields of the record at the cursor, which moves behind it; raises `CorruptRecords`."""
    fields: _Fields
    body_end: _Pointer = cursor.end
    length: _Long = _get_varint(cursor, 32)
    if not 1 <= length <= cursor.end - cursor.at:
        raise CorruptRecords("a record's length is wrong")
    cursor.end = cursor.at + length
    cursor.at += 1  # attributes
    fields.timestamp_delta = _get_varint(cursor, 64)
    fields.offset_delta = _get_varint(cursor, 32)
    if fields.offset_delta <= cursor.offset_delta and cursor.fault == cython.NULL:
        cursor.fault = b"an offset delta does not follow the one before"
    cursor.offset_delta = fields.offset_delta
    fields.key = _get_bytes(cursor, cython.address(fields.key_size))
    fields.value = _get_bytes(cursor, cython.address(fields.value_size))
    fields.header_count = _get_varint(cursor, 32)
    fields.headers = cursor[0]
    _skip_headers(cursor, fields.header_count)
    if cursor.at != cursor.end and cursor.fault == cython.NULL:
        cursor.fault = b"a record is longer than its fields"
    if cursor.fault != cython.NULL:
        raise CorruptRecords(cython.cast(bytes, cursor.fault).decode())
    cursor.end = body_end
    return fields


@cython.cfunc
@cython.exceptval(check=False)
def _skip_headers(cursor: cython.pointer[_Cursor], count: _Long) -> cython.void:
    size: _Long
    if count < 0:
        cursor.fault = b"a record has a negative number of headers"
    while count > 0 and cursor.fault == cython.NULL:
        count -= 1
        _get_bytes(cursor, cython.address(size))
        if size < 0:
            cursor.fault = b"a header has no key"
        _get_bytes(cursor, cython.address(size))


@cython.cfunc
def _headers(cursor: _Cursor, count: _Long) -> tuple:
    """The headers at the cursor, which `_skip_headers` has found sound."""
    headers: list = []
    size: _Long
    data: _Pointer
    for _ in range(count):
        data = _get_bytes(cython.address(cursor), cython.address(size))
        key = header_key_text(_bytes(data, size))
        data = _get_bytes(cython.address(cursor), cython.address(size))
        headers.append((key, _bytes(data, size)))
    return tuple(headers)


@cython.cfunc
@cython.exceptval(check=False)
def _get_bytes(cursor: cython.pointer[_Cursor], size: cython.pointer[_Long]) -> _Pointer:
    """Where the bytes are that follow their length; `size` is -1 for null."""
    data: _Pointer
    size[0] = _get_varint(cursor, 32)
    if not -1 <= size[0] <= cursor.end - cursor.at:
        cursor.fault = b"a field's length is wrong"
        size[0] = -1
    data = cursor.at
    if size[0] > 0:
        cursor.at += size[0]
    return data


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _get_varint(cursor: cython.pointer[_Cursor], bits: cython.int) -> _Long:
    """Of one or two bytes, as nearly all are, without a loop."""
    at: _Pointer = cursor.at
    value: cython.ulonglong
    if at == cursor.end or cursor.fault != cython.NULL:
        return _get_any_varint(cursor, bits)
    if at[0] < 0x80:
        value = at[0]
        cursor.at = at + 1
    elif cursor.end - at > 1 and at[1] < 0x80:
        value = at[0] & 0x7F | cython.cast(cython.ulonglong, at[1]) << 7
        cursor.at = at + 2
    else:
        return _get_any_varint(cursor, bits)
    return cython.cast(_Long, value >> 1) ^ -cython.cast(_Long, value & 1)


@cython.cfunc
@cython.exceptval(check=False)
def _get_any_varint(cursor: cython.pointer[_Cursor], bits: cython.int) -> _Long:
    value: cython.ulonglong = 0
    shift: cython.int = 0
    byte: cython.uchar
    while shift < bits and cursor.fault == cython.NULL:
        if cursor.at == cursor.end:
            cursor.fault = b"a varint is cut off by the end of its record"
            return 0
        byte = cursor.at[0]
        cursor.at += 1
        value |= cython.cast(cython.ulonglong, byte & 0x7F) << shift
        if byte < 0x80 and (shift + 7 <= bits or byte >> (bits - shift) == 0):
            return cython.cast(_Long, value >> 1) ^ -cython.cast(_Long, value & 1)
        shift += 7
    if cursor.fault == cython.NULL:
        cursor.fault = b"a varint has too many bits"
    return 0


@cython.cfunc
def _bytes(data: _Pointer, size: _Long) -> object:
    if size < 0:
        return None
    return cython.cast(cython.p_char, data)[:size]


@cython.cfunc
def _sum(base: _Long, delta: _Long, what: str) -> object:
    if delta > _INT64_MAX - base if base > 0 else delta < _INT64_MIN - base:
        raise CorruptRecords(f"a record's {what} has more than 64 bits")
    return base + delta
