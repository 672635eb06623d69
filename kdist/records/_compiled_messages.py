# cython: boundscheck=False, wraparound=False
# ruff: noqa: F821 - an annotation alone declares a C variable
"""Whole message sets, compiled by Cython: the functions of `_reference_messages.py`.

Writing makes no Python object of a record; reading makes only a message's key, value and timestamp.
The CRC-32 is computed here, eight bytes at a time: most messages are small, and a call of zlib for
each would cost more than their bytes do.
"""

from __future__ import annotations

import cython

if not cython.compiled:
    raise ImportError("the compiled message sets have not been built")

from cython.cimports.cpython.bytearray import (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_Resize,
)
from cython.cimports.kdist.records._big_endian import int32, int64, number, put_number
from cython.cimports.kdist.records._compiled_decoding import (
    _Cursor,
    _Fields,
    _finish,
    _next,
    _start,
    _sum,
)
from cython.cimports.libc.string import memcpy

from kdist.model import NO_TIMESTAMP
from kdist.records._reference_messages import Columns, Written
from kdist.records.message_set import (
    CHECKED_POSITION,
    LOG_APPEND_TIME,
    MAGIC_MAX,
    SIZE_MIN,
    SIZE_POSITION,
)

_Pointer = cython.typedef(cython.p_uchar)
_Size = cython.typedef(cython.Py_ssize_t)
_Long = cython.typedef(cython.longlong)

_SIZE_POSITION = cython.declare(_Size, SIZE_POSITION)
_SIZE_END = cython.declare(_Size, SIZE_POSITION + 4)  # a size counts the bytes from here
_CHECKED_POSITION = cython.declare(_Size, CHECKED_POSITION)
_SIZE_MIN_0 = cython.declare(_Size, SIZE_MIN[0])
_SIZE_MIN_1 = cython.declare(_Size, SIZE_MIN[1])
_MAGIC_MAX = cython.declare(_Long, MAGIC_MAX)
_LOG_APPEND_TIME = cython.declare(_Long, LOG_APPEND_TIME)
_NO_TIMESTAMP = cython.declare(_Long, NO_TIMESTAMP)
_POLYNOMIAL = cython.declare(cython.uint, 0xEDB88320)

_crc_table = cython.declare(cython.uint[2048])  # 8 tables of 256: a byte with 0 to 7 bytes after it


def read_columns(messages: cython.const[cython.uchar][::1], magic: _Long) -> object:
    """As `_reference_messages.read_columns`."""
    values: list = []
    keys: list = []
    timestamps: list = []
    if not messages.shape[0] or not 0 <= magic <= _MAGIC_MAX:
        return None
    at: _Pointer = cython.cast(_Pointer, cython.address(messages[0]))
    end: _Pointer = at + messages.shape[0]
    message_end: _Pointer
    size: _Long
    size_min: _Size = _SIZE_MIN_1 if magic else _SIZE_MIN_0
    while at != end:
        size = int32(at + _SIZE_POSITION) if end - at >= _SIZE_END + size_min else 0
        if not size_min <= size <= end - at - _SIZE_END:
            return None
        message_end = at + _SIZE_END + size
        if at[_CHECKED_POSITION] != magic or at[_CHECKED_POSITION + 1] != 0:
            return None
        at += _CHECKED_POSITION
        if _crc32(at, message_end - at) != number(at - 4, 4):
            return None
        at += 2
        if magic:
            timestamps.append(int64(at))
            at += 8
        else:
            timestamps.append(_NO_TIMESTAMP)
        size = int32(at)
        at += 4
        if size > message_end - at - 4:
            return None
        keys.append(None if size < 0 else cython.cast(cython.p_char, at)[:size])
        at += max(size, 0)
        size = int32(at)
        at += 4
        if max(size, 0) != message_end - at:
            return None
        values.append(None if size < 0 else cython.cast(cython.p_char, at)[:size])
        at = message_end
    return Columns(values, keys, timestamps)


def write_messages(
    body: cython.const[cython.uchar][::1],
    header: object,
    magic: _Long,
    lowest_offset: _Long,
    count_max: _Size,
) -> object:
    """As `_reference_messages.write_messages`."""
    count: _Size = header.record_count
    base_offset: _Long = header.base_offset
    base_timestamp: _Long = header.base_timestamp
    is_append_time: cython.bint = header.is_log_append_time
    timestamp: _Long = header.max_timestamp
    is_relative: cython.bint = magic > 0 and header.codec != 0
    attributes: _Long = _LOG_APPEND_TIME if is_append_time and magic else 0
    cursor: _Cursor = _start(body, count)
    fields: _Fields
    # Keys and values take no more than the body. Bytes that are never written take no memory.
    room: _Size = body.shape[0] + count * (_SIZE_END + _SIZE_MIN_1)
    content: bytearray = PyByteArray_FromStringAndSize(cython.NULL, room)
    start: _Pointer = cython.cast(_Pointer, PyByteArray_AS_STRING(content))
    at: _Pointer = start
    written: _Size = 0
    offset: _Long = 0
    first_offset: _Long = 0
    last_offset: _Long = 0
    newest: _Long = timestamp
    for _ in range(count):
        _next(cython.address(cursor), cython.address(fields))
        if not is_append_time:
            timestamp = _sum(base_timestamp, fields.timestamp_delta, "timestamp")
        offset = _sum(base_offset, fields.offset_delta, "offset")
        if offset < lowest_offset or written >= count_max:
            continue
        if not written:
            newest = timestamp
            first_offset = offset if is_relative else 0
        newest = max(newest, timestamp)
        last_offset = offset
        written += 1
        at = _put_message(
            at, offset - first_offset, magic, attributes, timestamp, cython.address(fields)
        )
    _finish(cursor, count)
    if not written:
        return None
    PyByteArray_Resize(content, at - start)
    return Written(content, written, last_offset, newest)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_message(
    at: _Pointer,
    offset: _Long,
    magic: _Long,
    attributes: _Long,
    timestamp: _Long,
    fields: cython.pointer[_Fields],
) -> _Pointer:
    checked: _Pointer = at + _CHECKED_POSITION
    put_number(at, offset, 8)
    at = put_number(checked, magic, 1)
    at = put_number(at, attributes, 1)
    if magic:
        at = put_number(at, timestamp, 8)
    at = _put_bytes(at, fields.key, fields.key_size)
    at = _put_bytes(at, fields.value, fields.value_size)
    put_number(checked - 8, at - checked + 4, 4)
    put_number(checked - 4, _crc32(checked, at - checked), 4)
    return at


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_bytes(at: _Pointer, data: _Pointer, size: _Long) -> _Pointer:
    at = put_number(at, size, 4)
    if size <= 0:
        return at
    memcpy(at, data, size)
    return at + size


@cython.cfunc
@cython.exceptval(check=False)
def _crc32(at: _Pointer, size: _Size) -> cython.uint:
    """As `zlib.crc32`."""
    crc: cython.uint = 0xFFFFFFFF
    table: cython.p_uint = _crc_table
    i: cython.int
    next_crc: cython.uint
    while size >= 8:
        next_crc = 0
        for i in range(4):
            next_crc ^= table[(7 - i) * 256 + ((crc >> 8 * i ^ at[i]) & 0xFF)]
            next_crc ^= table[(3 - i) * 256 + at[4 + i]]
        crc = next_crc
        at += 8
        size -= 8
    while size:
        crc = crc >> 8 ^ table[(crc ^ at[0]) & 0xFF]
        at += 1
        size -= 1
    return ~crc


@cython.cfunc
def _fill_crc_table() -> cython.void:
    crc: cython.uint
    i: cython.int
    for i in range(256):
        crc = i
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        _crc_table[i] = crc
    for i in range(256, 2048):
        crc = _crc_table[i - 256]
        _crc_table[i] = crc >> 8 ^ _crc_table[crc & 0xFF]


_fill_crc_table()
