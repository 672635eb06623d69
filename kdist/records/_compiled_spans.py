# cython: boundscheck=False, wraparound=False
# ruff: noqa: F821 - an annotation alone declares a C variable
"""Scanning many batches at a time, compiled by Cython: the functions of `_reference_spans.py`.

A batch whose CRC is not checked takes some 10 ns here. The interpreter takes microseconds to make
an object of its header and look at each field.
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
from cython.cimports.kdist.records._big_endian import header_fields, int16, int32, int64

from kdist.records import _reference_spans, batch
from kdist.records.batch import BatchHeader
from kdist.wire.crc32c import crc32c

_Pointer = cython.typedef(cython.p_uchar)
_Size = cython.typedef(cython.Py_ssize_t)
_Long = cython.typedef(cython.longlong)

_HEADER_SIZE = cython.declare(_Size, batch.HEADER_SIZE)
_PREFIX_SIZE = cython.declare(_Size, batch.LENGTH_PREFIX_SIZE)
_CHECKED_POSITION = cython.declare(_Size, batch.CHECKED_POSITION)
_RECORD_SIZE_MIN = cython.declare(_Size, batch.RECORD_SIZE_MIN)
_CODEC_BITS = cython.declare(_Long, batch.CODEC_BITS)
_CODEC_MAX = cython.declare(_Long, batch.CODEC_MAX)
_NOT_PLAIN = cython.declare(_Long, int(batch.Attribute.TRANSACTIONAL | batch.Attribute.CONTROL))
_MAGIC = cython.declare(_Long, batch.MAGIC)
_BatchHeader = cython.declare(object, BatchHeader)
_BatchSpan = cython.declare(object, _reference_spans.BatchSpan)
_crc32c = cython.declare(object, crc32c)
_new_tuple = cython.declare(object, tuple.__new__)


def find_span(
    whole: object,
    position: _Size,
    end: _Size,
    offset_before: _Long,
    offset_max: _Long,
    trusted_offset: _Long,
    room_bytes: _Size,
) -> object:
    """As `_reference_spans.find_span`."""
    buffer: Py_buffer
    first: _Pointer
    at: _Pointer
    newest: _Pointer
    size: _Size = 0
    last_size: _Size = 0
    batch_count: _Long = 0
    record_count: _Long = 0
    has_producers: cython.bint = False
    assert position >= 0
    PyObject_GetBuffer(whole, cython.address(buffer), PyBUF_SIMPLE)
    try:
        first = newest = cython.cast(_Pointer, buffer.buf) + position
        while not size or size - last_size <= room_bytes:
            at = first + size
            if (
                buffer.len - position - size < _HEADER_SIZE
                or not is_sound(at, end - position - size, offset_max)
                or int64(at) <= offset_before
                or (size and int64(at) - 1 != offset_before)
                or int32(at + 12) != int32(first + 12)
                or not (_last_offset(at) < trusted_offset or _is_whole(whole, position + size, at))
            ):
                break
            if int64(at + 35) > int64(newest + 35):
                newest = at
            offset_before = _last_offset(at)
            batch_count += 1
            record_count += int32(at + 57)
            has_producers |= int64(at + 43) >= 0
            last_size = _size(at)
            size += last_size
        if not size:
            return None
        fields = (
            size,
            last_size,
            int64(first),
            offset_before,
            int32(first + 12),
            batch_count,
            record_count,
            int64(newest + 35),
            _last_offset(newest),
            bool(has_producers),
        )
        return _new_tuple(_BatchSpan, fields)
    finally:
        PyBuffer_Release(cython.address(buffer))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _size(at: _Pointer) -> _Size:
    return _PREFIX_SIZE + int32(at + 8)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _last_offset(at: _Pointer) -> _Long:
    return int64(at) + int32(at + 23)


@cython.cfunc
@cython.exceptval(check=False)
def is_sound(at: _Pointer, left: _Size, offset_max: _Long) -> cython.bint:
    """Whether `batch.header_fault` finds nothing, and no offset is above `offset_max`."""
    codec: _Long = int16(at + 21) & _CODEC_BITS
    delta: _Long = int32(at + 23)
    count: _Long = int32(at + 57)
    return (
        at[16] == _MAGIC
        and _HEADER_SIZE <= _size(at) <= left
        and codec <= _CODEC_MAX
        and int64(at) >= 0
        and delta >= 0
        and int64(at) <= offset_max - delta
        and 0 <= count <= delta + 1
        and (codec or count * _RECORD_SIZE_MIN <= _size(at) - _HEADER_SIZE)
    )


@cython.cfunc
def _is_whole(whole: object, position: _Size, at: _Pointer) -> cython.bint:
    """Whether the batch is complete, and its CRC right."""
    data: object = whole[position + _CHECKED_POSITION : position + _size(at)]
    if len(data) < _size(at) - _CHECKED_POSITION:
        return False
    return _crc32c(data) == int32(at + 17) & 0xFFFF_FFFF


def producer_headers(whole: object, size: _Size, batches_kept: _Size) -> list:
    """As `_reference_spans.producer_headers`."""
    buffer: Py_buffer
    at: _Pointer
    position: _Size
    count: _Size
    is_plain: cython.bint
    is_counted: cython.bint
    left: dict = {}  # number of plain batches by producer id: counted up, then down
    found: list = []
    PyObject_GetBuffer(whole, cython.address(buffer), PyBUF_SIMPLE)
    try:
        for is_counted in (False, True):
            position = 0
            while position < size:
                at = cython.cast(_Pointer, buffer.buf) + position
                assert buffer.len - position >= _HEADER_SIZE <= _size(at)
                if int64(at + 43) >= 0:
                    producer: object = int64(at + 43)
                    is_plain = not int16(at + 21) & _NOT_PLAIN
                    count = left.get(producer, 0)
                    count += -is_plain if is_counted else is_plain
                    left[producer] = count
                    if is_counted and not (is_plain and count >= batches_kept):
                        header: object = _new_tuple(_BatchHeader, header_fields(at))
                        found.append((position, header))
                position += _size(at)
    finally:
        PyBuffer_Release(cython.address(buffer))
    return found
