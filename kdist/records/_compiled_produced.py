# cython: boundscheck=False, wraparound=False
# ruff: noqa: F821 - an annotation alone declares a C variable
"""A produced batch, compiled by Cython: the functions of `_reference_produced.py`.

There they take a fifth of a produce of one record, mostly to interpret the access to each field.
Here the header is read in place, and made a tuple only once it has passed the checks. The look at
each record makes no objects: the generic cursor of `_compiled_decoding.py` takes three times as
long.
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
from cython.cimports.kdist.records._header import (
    CHECKED_POSITION,
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    PREFIX_SIZE,
    RECORD_SIZE_MIN,
    attributes_of,
    base_offset_of,
    base_sequence_of,
    base_timestamp_of,
    crc_of,
    header_fields,
    int32,
    is_dense,
    is_sound,
    max_timestamp_of,
    producer_id_of,
    put_int32,
    put_int64,
    record_count_of,
    size_of,
)

from kdist.errors import CorruptRecords
from kdist.model import NO_TIMESTAMP
from kdist.records import _reference_produced, batch
from kdist.records._compiled import decode_numbers, find_null_key
from kdist.records.batch import Batch, BatchHeader
from kdist.records.compression import RATIO_MAX
from kdist.records.record import INT64_MAX, INT64_MIN
from kdist.wire.crc32c import crc32c

_Pointer = cython.typedef(cython.p_uchar)
_Size = cython.typedef(cython.Py_ssize_t)
_Long = cython.typedef(cython.longlong)
_Varint = cython.typedef(cython.ulonglong)

_SPAN_MS_MAX = cython.declare(cython.ulonglong, batch.TRUSTED_SPAN_MS)
_NOT_USUAL = cython.declare(_Long, INT64_MIN)
_INT64_MAX = cython.declare(_Long, INT64_MAX)
_TIMESTAMP_MAX = cython.declare(_Long, INT64_MAX >> 1)  # room for a delta of five bytes
_TAGS_BYTES = cython.declare(_Size, _reference_produced.TAGS_BYTES)
_NO_TIMESTAMP = cython.declare(_Long, NO_TIMESTAMP)
_Batch = cython.declare(object, Batch)
_BatchHeader = cython.declare(object, BatchHeader)
_BatchTotals = cython.declare(object, _reference_produced.BatchTotals)
_BodySummary = cython.declare(object, _reference_produced.BodySummary)
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
    if not HEADER_SIZE <= size <= size_max or buffer.readonly:
        return None
    at: _Pointer = cython.cast(_Pointer, buffer.buf) + start
    attributes: _Long = attributes_of(at)
    if not (
        is_sound(at, size, _INT64_MAX)
        and size_of(at) == size
        and 0 <= attributes <= codec_max
        and _may_be_produced(at)
        and _has_likely_max_timestamp(at)
        and _crc32c(whole[start + CHECKED_POSITION : end]) == crc_of(at)
        and (attributes or _is_newest(whole, start, end, at))
    ):
        return None
    header: object = _new_tuple(_BatchHeader, header_fields(at))
    return _new_tuple(_Batch, (header, whole[start:end]))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _may_be_produced(at: _Pointer) -> cython.bint:
    """Whether `batch.producer_fault` finds nothing in the header of a sound batch."""
    attributes: _Long = attributes_of(at)
    packed_bytes: _Long = size_of(at) - HEADER_SIZE
    return (
        base_offset_of(at) == 0
        and is_dense(at)
        and not attributes & CONTROL
        and (producer_id_of(at) < 0 or base_sequence_of(at) >= 0)
        and record_count_of(at) * RECORD_SIZE_MIN
        <= _ratio_max[attributes & CODEC_MASK] * packed_bytes
    )


@cython.cfunc
@cython.exceptval(check=False)
def _has_likely_max_timestamp(at: _Pointer) -> cython.bint:
    """As `batch.has_likely_max_timestamp`."""
    base_timestamp: cython.ulonglong = cython.cast(cython.ulonglong, base_timestamp_of(at))
    max_timestamp: cython.ulonglong = cython.cast(cython.ulonglong, max_timestamp_of(at))
    if base_timestamp_of(at) > max_timestamp_of(at):
        return False
    return not attributes_of(at) & CODEC_MASK or max_timestamp - base_timestamp <= _SPAN_MS_MAX


@cython.cfunc
def _is_newest(whole: object, start: _Size, end: _Size, at: _Pointer) -> cython.bint:
    """Whether the records, which are not compressed, are whole, and have the max timestamp."""
    base_timestamp: _Long = base_timestamp_of(at)
    count: _Long = record_count_of(at)
    lacks_keys: cython.bint = False
    newest_ms: _Long = _usual_newest(
        at + HEADER_SIZE, at + (end - start), count, base_timestamp, cython.address(lacks_keys)
    )
    if newest_ms != _NOT_USUAL:
        return newest_ms == max_timestamp_of(at)
    summary = body_summary(whole[start + HEADER_SIZE : end], count, base_timestamp)
    return summary is not None and summary.newest_ms == max_timestamp_of(at)


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
            assert buffer.len >= HEADER_SIZE
            put_int64(cython.cast(_Pointer, buffer.buf), offset)
            put_int32(cython.cast(_Pointer, buffer.buf) + PREFIX_SIZE, leader_epoch)
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


# The records of a body


def body_summary(body: object, count: _Long, base_timestamp: _Long) -> object:
    """As `_reference_produced.body_summary`. Other threads run meanwhile."""
    buffer: Py_buffer
    lacks_keys: cython.bint = False
    PyObject_GetBuffer(body, cython.address(buffer), PyBUF_SIMPLE)
    try:
        at: _Pointer = cython.cast(_Pointer, buffer.buf)
        end: _Pointer = at + buffer.len
        with cython.nogil:
            newest_ms: _Long = _usual_newest(
                at, end, count, base_timestamp, cython.address(lacks_keys)
            )
    finally:
        PyBuffer_Release(cython.address(buffer))
    if newest_ms == _NOT_USUAL:
        return _summary_of_unusual(body, count, base_timestamp)
    return _BodySummary(newest_ms, bool(lacks_keys))


def _summary_of_unusual(body: object, count: _Long, base_timestamp: _Long) -> object:
    """As `body_summary`, for any records, by decoding their numbers."""
    try:
        offsets, timestamps = decode_numbers(body, count, 0, base_timestamp)
        if not offsets or offsets[count - 1] != count - 1:
            return None
        return _BodySummary(max(timestamps), find_null_key(body, count) is not None)
    except CorruptRecords:
        return None


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _usual_newest(
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
