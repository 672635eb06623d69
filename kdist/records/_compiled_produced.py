# cython: boundscheck=False, wraparound=False
# ruff: noqa: F821 - an annotation alone declares a C variable
"""A produced batch, compiled by Cython: the functions of `_reference_produced.py`.

There they take a fifth of a produce of one record, mostly to interpret the access to each field.
Here the header is read in place, and made a tuple only once it has passed the checks.
"""

from __future__ import annotations

import cython

if not cython.compiled:
    raise ImportError("the compiled record codec has not been built")

from cython.cimports.cpython.buffer import (
    Py_buffer,
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cython.cimports.kdist.records._big_endian import header_fields, int16, int32, int64
from cython.cimports.kdist.records._compiled_spans import is_sound
from cython.cimports.kdist.records._compiled_walk import usual_newest

from kdist.model import NO_TIMESTAMP
from kdist.records import _compiled_walk, _reference_produced, batch
from kdist.records.batch import Batch, BatchHeader
from kdist.records.frames import RATIO_MAX
from kdist.records.record import INT64_MAX, INT64_MIN
from kdist.wire.crc32c import crc32c

_Pointer = cython.typedef(cython.p_uchar)
_Size = cython.typedef(cython.Py_ssize_t)
_Long = cython.typedef(cython.longlong)

_HEADER_SIZE = cython.declare(_Size, batch.HEADER_SIZE)
_PREFIX_SIZE = cython.declare(_Size, batch.LENGTH_PREFIX_SIZE)
_CHECKED_POSITION = cython.declare(_Size, batch.CHECKED_POSITION)
_RECORD_SIZE_MIN = cython.declare(_Long, batch.RECORD_SIZE_MIN)
_CODEC_BITS = cython.declare(_Long, batch.CODEC_BITS)
_SPAN_MS_MAX = cython.declare(cython.ulonglong, batch.TRUSTED_SPAN_MS)
_NOT_USUAL = cython.declare(_Long, INT64_MIN)
_LOG_APPEND_TIME = cython.declare(_Long, int(batch.Attribute.LOG_APPEND_TIME))
_INT64_MAX = cython.declare(_Long, INT64_MAX)
_TAGS_BYTES = cython.declare(_Size, _reference_produced.TAGS_BYTES)
_NO_TIMESTAMP = cython.declare(_Long, NO_TIMESTAMP)
_Batch = cython.declare(object, Batch)
_BatchHeader = cython.declare(object, BatchHeader)
_BatchTotals = cython.declare(object, _reference_produced.BatchTotals)
_crc32c = cython.declare(object, crc32c)
_new_tuple = cython.declare(object, tuple.__new__)

_DELTA = cython.declare(_Size, BatchHeader._fields.index("last_offset_delta"))
_MAX_TIMESTAMP = cython.declare(_Size, BatchHeader._fields.index("max_timestamp"))
_PRODUCER_ID = cython.declare(_Size, BatchHeader._fields.index("producer_id"))
_COUNT = cython.declare(_Size, BatchHeader._fields.index("record_count"))

_ratio_max = cython.declare(_Long[8])
for _codec, _ratio in enumerate(RATIO_MAX):
    _ratio_max[_codec] = _ratio


def find_batch(
    frame: object, position: _Size, is_flexible: cython.bint, size_max: _Long, codec_max: _Long
) -> object:
    """As `_reference_produced.find_batch`."""
    buffer: Py_buffer
    start: _Size
    PyObject_GetBuffer(frame, cython.address(buffer), PyBUF_SIMPLE)
    try:
        end: _Size = buffer.len
        if is_flexible:
            end -= _TAGS_BYTES
            start = _behind_varint(cython.cast(_Pointer, buffer.buf), position, end)
        else:
            start = _behind_int32(cython.cast(_Pointer, buffer.buf), position, end)
        if start < 0:
            return None
        return _check(frame, cython.address(buffer), start, end, size_max, codec_max)
    finally:
        PyBuffer_Release(cython.address(buffer))


def check_batch(
    whole: object, start: _Size, end: _Size, size_max: _Long, codec_max: _Long
) -> object:
    """As `_reference_produced.check_batch`."""
    buffer: Py_buffer
    PyObject_GetBuffer(whole, cython.address(buffer), PyBUF_SIMPLE)
    try:
        assert 0 <= start <= end <= buffer.len
        return _check(whole, cython.address(buffer), start, end, size_max, codec_max)
    finally:
        PyBuffer_Release(cython.address(buffer))


@cython.cfunc
@cython.exceptval(check=False)
def _behind_int32(at: _Pointer, position: _Size, end: _Size) -> _Size:
    """Where the records begin that follow their size at `position`; -1 unless they end at `end`."""
    start: _Size = position + 4
    return start if position >= 0 and start <= end and int32(at + position) == end - start else -1


@cython.cfunc
@cython.exceptval(check=False)
def _behind_varint(at: _Pointer, position: _Size, end: _Size) -> _Size:
    """As `_behind_int32` for a compact size; -1 also unless three empty tag sections follow."""
    size: _Size = 0
    shift: cython.int = 0
    byte: cython.uchar = 0x80
    if position < 0 or end < 0 or at[end] or at[end + 1] or at[end + 2]:
        return -1
    while byte >= 0x80 and position < end and shift < 35:
        byte = at[position]
        size |= cython.cast(_Size, byte & 0x7F) << shift
        position += 1
        shift += 7
    return position if byte < 0x80 and size - 1 == end - position else -1


@cython.cfunc
def _check(
    whole: object,
    buffer: cython.pointer[Py_buffer],
    start: _Size,
    end: _Size,
    size_max: _Long,
    codec_max: _Long,
) -> object:
    size: _Size = end - start
    if not _HEADER_SIZE <= size <= size_max or buffer.readonly:
        return None
    at: _Pointer = cython.cast(_Pointer, buffer.buf) + start
    attributes: _Long = int16(at + 21)
    count: _Long = int32(at + 57)
    crc: _Long = int32(at + 17) & 0xFFFF_FFFF
    if not (
        is_sound(at, size, _INT64_MAX)
        and int32(at + 8) == size - _PREFIX_SIZE
        and 0 <= attributes <= codec_max
        and int64(at) == 0
        and 0 < count == cython.cast(_Long, int32(at + 23)) + 1
        and count * _RECORD_SIZE_MIN <= _ratio_max[attributes] * (size - _HEADER_SIZE)
        and (int64(at + 43) < 0 or int32(at + 53) >= 0)
        and _has_likely_max_timestamp(at)
        and _crc32c(whole[start + _CHECKED_POSITION : end]) == crc
        and (attributes or _is_newest(whole, start, end, at))
    ):
        return None
    header: object = _new_tuple(_BatchHeader, header_fields(at))
    return _new_tuple(_Batch, (header, whole[start:end]))


@cython.cfunc
@cython.exceptval(check=False)
def _has_likely_max_timestamp(at: _Pointer) -> cython.bint:
    """As `batch.has_likely_max_timestamp`."""
    base_timestamp: cython.ulonglong = cython.cast(cython.ulonglong, int64(at + 27))
    max_timestamp: cython.ulonglong = cython.cast(cython.ulonglong, int64(at + 35))
    if int64(at + 27) > int64(at + 35):
        return False
    return not int16(at + 21) & _CODEC_BITS or max_timestamp - base_timestamp <= _SPAN_MS_MAX


@cython.cfunc
def _is_newest(whole: object, start: _Size, end: _Size, at: _Pointer) -> cython.bint:
    """Whether the records, which are not compressed, are whole, and have the max timestamp."""
    base_timestamp: _Long = int64(at + 27)
    count: _Long = int32(at + 57)
    lacks_keys: cython.bint = False
    newest_ms: _Long = usual_newest(
        at + _HEADER_SIZE, at + (end - start), count, base_timestamp, cython.address(lacks_keys)
    )
    if newest_ms != _NOT_USUAL:
        return newest_ms == int64(at + 35)
    summary = _compiled_walk.body_summary(whole[start + _HEADER_SIZE : end], count, base_timestamp)
    return summary is not None and summary.newest_ms == int64(at + 35)


def find_plain_span(
    whole: object, position: _Size, size_max: _Size, check_crcs: cython.bint
) -> object:
    """As `_reference_produced.find_plain_span`."""
    buffer: Py_buffer
    PyObject_GetBuffer(whole, cython.address(buffer), PyBUF_SIMPLE)
    try:
        assert 0 <= position <= buffer.len
        return _find_plain_span(
            whole, cython.cast(_Pointer, buffer.buf), position, buffer.len, size_max, check_crcs
        )
    finally:
        PyBuffer_Release(cython.address(buffer))


@cython.cfunc
def _find_plain_span(
    whole: object,
    start: _Pointer,
    position: _Size,
    end: _Size,
    size_max: _Size,
    check_crcs: cython.bint,
) -> object:
    first: _Pointer = start + position
    at: _Pointer
    left: _Size
    size: _Long
    count: _Long
    batch_count: _Size = 0
    run_size: _Size = 0
    run_count: _Long = 0
    while True:
        at = first + run_size
        left = end - position - run_size
        # So that the next offset is no larger than the largest.
        if left < _HEADER_SIZE or not is_sound(at, left, _INT64_MAX - 1):
            break
        size = int32(at + 8) + _PREFIX_SIZE
        count = int32(at + 57)
        if not (
            (not run_size or run_size + size <= size_max)
            and int16(at + 21) & ~_LOG_APPEND_TIME == 0
            and 0 < count == cython.cast(_Long, int32(at + 23)) + 1
            and int64(at) - int64(first) == run_count
            and int16(at + 21) == int16(first + 21)
            and int32(at + 12) == int32(first + 12)
        ):
            break
        if check_crcs:
            left = position + run_size
            crc: object = _crc32c(whole[left + _CHECKED_POSITION : left + size])
            if crc != int32(at + 17) & 0xFFFF_FFFF:
                break
        batch_count += 1
        run_size += size
        run_count += count
    return batch_count, run_size, run_count


def batch_totals(batches: object) -> object:
    """As `_reference_produced.batch_totals`."""
    size: _Size = 0
    offset_count: _Long = 0
    record_count: _Long = 0
    newest_ms: _Long = _NO_TIMESTAMP
    has_producers: cython.bint = False
    for each in batches:
        header = _header(each)
        size += len(cython.cast(tuple, each)[1])
        offset_count += cython.cast(_Long, header[_DELTA]) + 1
        record_count += cython.cast(_Long, header[_COUNT])
        newest_ms = max(newest_ms, cython.cast(_Long, header[_MAX_TIMESTAMP]))
        has_producers |= cython.cast(_Long, header[_PRODUCER_ID]) >= 0
    totals = (size, offset_count, record_count, newest_ms, bool(has_producers))
    return _new_tuple(_BatchTotals, totals)


def assign(batches: object, offset: _Long, leader_epoch: cython.int) -> list:
    """As `_reference_produced.assign`."""
    buffer: Py_buffer
    offsets: list = []
    for each in batches:
        header = _header(each)
        PyObject_GetBuffer(cython.cast(tuple, each)[1], cython.address(buffer), PyBUF_WRITABLE)
        try:
            assert buffer.len >= _HEADER_SIZE
            _put(cython.cast(_Pointer, buffer.buf), offset, 8)
            _put(cython.cast(_Pointer, buffer.buf) + _PREFIX_SIZE, leader_epoch, 4)
        finally:
            PyBuffer_Release(cython.address(buffer))
        offsets.append(offset)
        offset += cython.cast(_Long, header[_DELTA]) + 1
    return offsets


@cython.cfunc
@cython.inline
def _header(each: object) -> tuple:
    """A batch's header. Both are named tuples, accessed as plain tuples by field index."""
    assert type(each) is _Batch
    header: object = cython.cast(tuple, each)[0]
    assert type(header) is _BatchHeader
    return cython.cast(tuple, header)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put(at: _Pointer, value: _Long, size: cython.int) -> cython.void:
    """Write `size` bytes, big-endian."""
    while size:
        size -= 1
        at[size] = value & 0xFF
        value >>= 8
