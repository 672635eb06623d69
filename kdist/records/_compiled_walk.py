# cython: boundscheck=False, wraparound=False
# ruff: noqa: F821 - an annotation alone declares a C variable
"""A look at each record of a produced batch, compiled by Cython: as `_reference_walk.py`.

It makes no objects. The generic cursor of `_compiled_decoding.py` takes three times as long.
"""

from __future__ import annotations

import cython

if not cython.compiled:
    raise ImportError("the compiled record codec has not been built")

from cython.cimports.cpython.buffer import (
    Py_buffer,
    PyBUF_SIMPLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)

from kdist.errors import CorruptRecords
from kdist.records._compiled import decode_numbers, find_null_key
from kdist.records._reference_walk import BodySummary
from kdist.records.record import INT64_MAX, INT64_MIN

_Pointer = cython.typedef(cython.p_uchar)
_Size = cython.typedef(cython.Py_ssize_t)
_Long = cython.typedef(cython.longlong)
_Varint = cython.typedef(cython.ulonglong)

_TIMESTAMP_MAX = cython.declare(_Long, INT64_MAX >> 1)  # room for a delta of five bytes
_NOT_USUAL = cython.declare(_Long, INT64_MIN)


def are_whole(body: object, count: _Long, base_timestamp: _Long) -> bool:
    """As `_reference_walk.are_whole`."""
    return body_summary(body, count, base_timestamp) is not None


def body_summary(body: object, count: _Long, base_timestamp: _Long) -> object:
    """As `_reference_walk.body_summary`. Other threads run meanwhile."""
    buffer: Py_buffer
    lacks_keys: cython.bint = False
    PyObject_GetBuffer(body, cython.address(buffer), PyBUF_SIMPLE)
    try:
        at: _Pointer = cython.cast(_Pointer, buffer.buf)
        end: _Pointer = at + buffer.len
        with cython.nogil:
            newest_ms: _Long = usual_newest(
                at, end, count, base_timestamp, cython.address(lacks_keys)
            )
    finally:
        PyBuffer_Release(cython.address(buffer))
    if newest_ms == _NOT_USUAL:
        return _summary_of_unusual(body, count, base_timestamp)
    return BodySummary(newest_ms, bool(lacks_keys))


def _summary_of_unusual(body: object, count: _Long, base_timestamp: _Long) -> object:
    """As `body_summary`, for any records, by decoding their numbers."""
    try:
        offsets, timestamps = decode_numbers(body, count, 0, base_timestamp)
        if not offsets or offsets[count - 1] != count - 1:
            return None
        return BodySummary(max(timestamps), find_null_key(body, count) is not None)
    except CorruptRecords:
        return None


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def usual_newest(
    at: _Pointer,
    end: _Pointer,
    count: _Long,
    base_timestamp: _Long,
    lacks_keys: cython.pointer[cython.bint],
) -> _Long:
    """The newest timestamp, if the records up to `end` are whole and such as producers send.

    INT64_MIN leaves it to `_summary_of_unusual`: a timestamp may be far from the base, say.
    """
    index: _Varint
    size: _Long
    got: _Varint
    record_end: _Pointer
    key: _Pointer
    newest_delta: _Long = _NOT_USUAL
    key_lengths: cython.uchar = 0  # their bits: that of a null key is odd, as it is negative
    if count <= 0 or not 0 <= base_timestamp <= _TIMESTAMP_MAX:
        return _NOT_USUAL
    for index in range(cython.cast(_Varint, count)):
        got = _varint(at, end)
        at += got & 7
        size = _decoded(got)
        if not 1 <= size <= end - at:  # or there was no varint
            return _NOT_USUAL
        record_end = at + size
        at += 1  # attributes
        got = _varint(at, record_end)  # the timestamp's delta
        at += got & 7
        if not got:
            return _NOT_USUAL
        newest_delta = max(newest_delta, _decoded(got))
        got = _varint(at, record_end)
        at += got & 7
        if not got or got >> 3 != index << 1:
            return _NOT_USUAL
        key = at
        at = _behind(at, record_end, -1)
        if at == cython.NULL:
            return _NOT_USUAL
        key_lengths |= key[0]
        at = _behind(at, record_end, -1)  # the value
        if at == cython.NULL:
            return _NOT_USUAL
        if at == record_end or at[0]:
            at = _behind_headers(at, record_end)
        else:
            at += 1
        if at != record_end:
            return _NOT_USUAL
    lacks_keys[0] = key_lengths & 1
    return base_timestamp + newest_delta if at == end else _NOT_USUAL


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _behind_headers(at: _Pointer, end: _Pointer) -> _Pointer:
    got: _Varint = _varint(at, end)
    left: _Long = _decoded(got)
    at += got & 7
    if not got or left < 0:
        return cython.NULL
    while left and at != cython.NULL:
        left -= 1
        at = _behind(at, end, 0)
        if at != cython.NULL:
            at = _behind(at, end, -1)
    return at


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _behind(at: _Pointer, end: _Pointer, least: _Long) -> _Pointer:
    """What follows a length of at least `least`, where -1 is null, and the bytes that it says."""
    got: _Varint = _varint(at, end)
    size: _Long = _decoded(got)
    at += got & 7
    if not got or not least <= size <= end - at:
        return cython.NULL
    return at + size if size > 0 else at


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _varint(at: _Pointer, end: _Pointer) -> _Varint:
    """The varint there, shifted by 3, and its size; 0 if it is cut off or has more than 5 bytes."""
    if at < end and at[0] < 0x80:  # as nearly all are
        return cython.cast(_Varint, at[0]) << 3 | 1
    return _long_varint(at, end)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _long_varint(at: _Pointer, end: _Pointer) -> _Varint:
    value: _Varint = 0
    size: cython.int = 0
    while size < 5 and at + size < end:
        value |= cython.cast(_Varint, at[size] & 0x7F) << 7 * size
        size += 1
        if at[size - 1] < 0x80:
            return value << 3 | size
    return 0


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _decoded(got: _Varint) -> _Long:
    return cython.cast(_Long, got >> 4) ^ -cython.cast(_Long, got >> 3 & 1)
