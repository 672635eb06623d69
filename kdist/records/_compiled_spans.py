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
from cython.cimports.kdist.records._header import (
    CHECKED_POSITION,
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    attributes_of,
    base_offset_of,
    crc_of,
    header_fields,
    is_dense,
    is_sound,
    last_offset_of,
    leader_epoch_of,
    max_timestamp_of,
    producer_id_of,
    record_count_of,
    size_of,
)

from kdist.records import _reference_spans
from kdist.records.batch import BatchHeader
from kdist.records.record import INT64_MAX
from kdist.wire.crc32c import crc32c

_Pointer = cython.typedef(cython.p_uchar)
_Size = cython.typedef(cython.Py_ssize_t)
_Long = cython.typedef(cython.longlong)

_INT64_MAX = cython.declare(_Long, INT64_MAX)
_BatchHeader = cython.declare(object, BatchHeader)
_BatchSpan = cython.declare(object, _reference_spans.BatchSpan)
_crc32c = cython.declare(object, crc32c)
_new_tuple = cython.declare(object, tuple.__new__)


def find_span(
    data: object,
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
    PyObject_GetBuffer(data, cython.address(buffer), PyBUF_SIMPLE)
    try:
        first = newest = cython.cast(_Pointer, buffer.buf) + position
        while not size or size - last_size <= room_bytes:
            at = first + size
            if (
                buffer.len - position - size < HEADER_SIZE
                or not is_sound(at, end - position - size, offset_max)
                or base_offset_of(at) <= offset_before
                or (size and base_offset_of(at) - 1 != offset_before)
                or leader_epoch_of(at) != leader_epoch_of(first)
                or not (last_offset_of(at) < trusted_offset or _is_whole(data, position + size, at))
            ):
                break
            if max_timestamp_of(at) > max_timestamp_of(newest):
                newest = at
            offset_before = last_offset_of(at)
            batch_count += 1
            record_count += record_count_of(at)
            has_producers |= producer_id_of(at) >= 0
            last_size = size_of(at)
            size += last_size
        if not size:
            return None
        fields = (
            size,
            last_size,
            base_offset_of(first),
            offset_before,
            leader_epoch_of(first),
            batch_count,
            record_count,
            max_timestamp_of(newest),
            last_offset_of(newest),
            bool(has_producers),
        )
        return _new_tuple(_BatchSpan, fields)
    finally:
        PyBuffer_Release(cython.address(buffer))


@cython.cfunc
def _is_whole(data: object, position: _Size, at: _Pointer) -> cython.bint:
    """Whether the batch is complete, and its CRC right."""
    checked: object = data[position + CHECKED_POSITION : position + size_of(at)]
    if len(checked) < size_of(at) - CHECKED_POSITION:
        return False
    return _crc32c(checked) == crc_of(at)


def find_plain_span(
    data: object, position: _Size, size_max: _Size, check_crcs: cython.bint
) -> object:
    """As `_reference_spans.find_plain_span`."""
    buffer: Py_buffer
    first: _Pointer
    at: _Pointer
    left: _Size
    batch_count: _Size = 0
    size: _Size = 0
    record_count: _Long = 0
    PyObject_GetBuffer(data, cython.address(buffer), PyBUF_SIMPLE)
    try:
        assert 0 <= position <= buffer.len
        first = cython.cast(_Pointer, buffer.buf) + position
        while True:
            at = first + size
            left = buffer.len - position - size
            if not (
                left >= HEADER_SIZE
                and is_sound(at, left, _INT64_MAX - 1)  # so that the next offset fits
                and (not size or size + size_of(at) <= size_max)
                and attributes_of(at) & ~LOG_APPEND_TIME == 0
                and is_dense(at)
                and base_offset_of(at) - base_offset_of(first) == record_count
                and attributes_of(at) == attributes_of(first)
                and leader_epoch_of(at) == leader_epoch_of(first)
                and (not check_crcs or _is_whole(data, position + size, at))
            ):
                return batch_count, size, record_count
            batch_count += 1
            record_count += record_count_of(at)
            size += size_of(at)
    finally:
        PyBuffer_Release(cython.address(buffer))


def producer_headers(data: object, size: _Size, batches_kept: _Size) -> list:
    """As `_reference_spans.producer_headers`."""
    buffer: Py_buffer
    at: _Pointer
    position: _Size
    count: _Size
    is_plain: cython.bint
    is_counted: cython.bint
    left: dict = {}  # number of plain batches by producer id: counted up, then down
    found: list = []
    PyObject_GetBuffer(data, cython.address(buffer), PyBUF_SIMPLE)
    try:
        for is_counted in (False, True):
            position = 0
            while position < size:
                at = cython.cast(_Pointer, buffer.buf) + position
                assert buffer.len - position >= HEADER_SIZE <= size_of(at)
                if producer_id_of(at) >= 0:
                    producer: object = producer_id_of(at)
                    is_plain = not attributes_of(at) & (TRANSACTIONAL | CONTROL)
                    count = left.get(producer, 0)
                    count += -is_plain if is_counted else is_plain
                    left[producer] = count
                    if is_counted and not (is_plain and count >= batches_kept):
                        header: object = _new_tuple(_BatchHeader, header_fields(at))
                        found.append((position, header))
                position += size_of(at)
    finally:
        PyBuffer_Release(cython.address(buffer))
    return found
