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

from kdist.records import _reference_walk
from kdist.records.record import INT64_MAX

_Pointer = cython.typedef(cython.p_uchar)
_Size = cython.typedef(cython.Py_ssize_t)
_Long = cython.typedef(cython.longlong)
_Varint = cython.typedef(cython.ulonglong)

_TIMESTAMP_MAX = cython.declare(_Long, INT64_MAX >> 1)  # room for a delta of five bytes


def are_whole(body: object, count: _Long, base_timestamp: _Long) -> bool:
    """As `_reference_walk.are_whole`."""
    buffer: Py_buffer
    PyObject_GetBuffer(body, cython.address(buffer), PyBUF_SIMPLE)
    try:
        at: _Pointer = cython.cast(_Pointer, buffer.buf)
        if are_usual(at, at + buffer.len, count, base_timestamp):
            return True
    finally:
        PyBuffer_Release(cython.address(buffer))
    return _reference_walk.are_whole(body, count, base_timestamp)


@cython.cfunc
@cython.exceptval(check=False)
def are_usual(at: _Pointer, end: _Pointer, count: _Long, base_timestamp: _Long) -> cython.bint:
    """Whether the records up to `end` are whole, and their numbers such as producers send.

    False leaves it to `_reference_walk.are_whole`: a timestamp may be far from the base, say.
    """
    index: _Varint
    size: _Long
    got: _Varint
    record_end: _Pointer
    if count <= 0 or not 0 <= base_timestamp <= _TIMESTAMP_MAX:
        return False
    for index in range(cython.cast(_Varint, count)):
        got = _varint(at, end)
        at += got & 7
        size = _decoded(got)
        if not 1 <= size <= end - at:  # or there was no varint
            return False
        record_end = at + size
        at += 1  # attributes
        got = _varint(at, record_end)  # the timestamp's delta
        at += got & 7
        if not got:
            return False
        got = _varint(at, record_end)
        at += got & 7
        if not got or got >> 3 != index << 1:
            return False
        at = _behind(at, record_end, -1)  # the key
        if at == cython.NULL:
            return False
        at = _behind(at, record_end, -1)  # the value
        if at == cython.NULL:
            return False
        if at == record_end or at[0]:
            at = _behind_headers(at, record_end)
        else:
            at += 1
        if at != record_end:
            return False
    return at == end


@cython.cfunc
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
@cython.inline
@cython.exceptval(check=False)
def _varint(at: _Pointer, end: _Pointer) -> _Varint:
    """The varint there, shifted by 3, and its size; 0 if it is cut off or has more than 5 bytes."""
    if at < end and at[0] < 0x80:  # as nearly all are
        return cython.cast(_Varint, at[0]) << 3 | 1
    return _long_varint(at, end)


@cython.cfunc
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
@cython.inline
@cython.exceptval(check=False)
def _decoded(got: _Varint) -> _Long:
    return cython.cast(_Long, got >> 4) ^ -cython.cast(_Long, got >> 3 & 1)
