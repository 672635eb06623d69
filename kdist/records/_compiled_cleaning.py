# cython: boundscheck=False, wraparound=False
# ruff: noqa: F821 - an annotation alone declares a C variable
"""What stays of a compacted log again, for Cython to compile: as `_reference_cleaning.py`.

Plain batches are mapped and sifted without an object for each; the map is `_compiled_key_map.py`.
"""

from __future__ import annotations

import cython

if not cython.compiled:
    raise ImportError("the compiled half of the cleaner has not been built")

from cython.cimports.cpython.buffer import (
    Py_buffer,
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cython.cimports.kdist.records._compiled_decoding import _Cursor, _Fields, _next
from cython.cimports.kdist.records._compiled_key_map import KeyMap, _Slot
from cython.cimports.kdist.records._header import (
    CHECKED_POSITION,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    PREFIX_SIZE,
    RECORD_SIZE_MIN,
    TRANSACTIONAL,
    attributes_of,
    base_offset_of,
    base_timestamp_of,
    crc_of,
    is_sound,
    last_offset_of,
    leader_epoch_of,
    producer_id_of,
    put_int16,
    put_int32,
    put_int64,
    record_count_of,
    size_of,
)
from cython.cimports.kdist.records._varint import put_varint, varint_size
from cython.cimports.libc.string import memcpy

from kdist.errors import CorruptRecords
from kdist.records import _reference_cleaning
from kdist.records.record import INT64_MAX, INT64_MIN
from kdist.wire.crc32c import crc32c

_Pointer = cython.typedef(cython.p_uchar)
_Size = cython.typedef(cython.Py_ssize_t)
_Long = cython.typedef(cython.longlong)
_Word = cython.typedef(cython.ulonglong)

_AHEAD = 16  # so many keys' slots are on their way to the cache at a time

_Aimed = cython.struct(count=cython.int, keys=_Slot[16])  # each with its record's offset
_Seen = cython.struct(
    at=cython.p_uchar,
    end=cython.p_uchar,
    offset=cython.longlong,
    timestamp=cython.longlong,
    is_tombstone=cython.bint,
    stays=cython.bint,
    is_asked=cython.bint,
    aimed=_Slot,
)

_NOT_PLAIN = cython.declare(cython.int, CODEC_MASK | TRANSACTIONAL | CONTROL)
_OUT_TIMES = cython.declare(_Size, _reference_cleaning.OUT_TIMES)
_INT64_MIN = cython.declare(_Long, INT64_MIN)
_INT64_MAX = cython.declare(_Long, INT64_MAX)
_crc32c = cython.declare(object, crc32c)


# Mapping


def map_body(
    key_map: KeyMap, body: object, count: _Size, base_offset: _Long, first_offset: _Long
) -> object:
    """As `_reference_cleaning.map_body`."""
    buffer: Py_buffer
    aimed: _Aimed
    aimed.count = 0
    PyObject_GetBuffer(body, cython.address(buffer), PyBUF_SIMPLE)
    try:
        at: _Pointer = cython.cast(_Pointer, buffer.buf)
        left_out: _Long = _map(
            key_map, at, buffer.len, count, base_offset, first_offset, cython.address(aimed)
        )
        if left_out < 0:
            left_out = _put_all(key_map, cython.address(aimed))
        return None if left_out < 0 else left_out
    finally:
        PyBuffer_Release(cython.address(buffer))


def map_batches(
    key_map: KeyMap, data: object, position: _Size, next_offset: _Long, first_offset: _Long
) -> tuple:
    """As `_reference_cleaning.map_batches`."""
    buffer: Py_buffer
    at: _Pointer
    size: _Size
    left_out: _Long = -1
    aimed: _Aimed
    aimed.count = 0
    PyObject_GetBuffer(data, cython.address(buffer), PyBUF_SIMPLE)
    try:
        while left_out < 0 and _is_plain(data, cython.address(buffer), position, next_offset):
            at = cython.cast(_Pointer, buffer.buf) + position
            size = size_of(at)
            left_out = _map(
                key_map,
                at + HEADER_SIZE,
                size - HEADER_SIZE,
                record_count_of(at),
                base_offset_of(at),
                first_offset,
                cython.address(aimed),
            )
            position += size
            next_offset = last_offset_of(at) + 1
        if left_out < 0:
            left_out = _put_all(key_map, cython.address(aimed))
        return position, next_offset if left_out < 0 else left_out
    finally:
        PyBuffer_Release(cython.address(buffer))


@cython.cfunc
@cython.exceptval(-1, check=True)
def _is_plain(
    data: object, buffer: cython.pointer[Py_buffer], position: _Size, next_offset: _Long
) -> cython.int:
    """Whether a batch is at `position` that is whole, sound, and needs no other look."""
    left: _Size = buffer.len - position
    if left < HEADER_SIZE:
        return 0
    at: _Pointer = cython.cast(_Pointer, buffer.buf) + position
    if (
        not is_sound(at, left, _INT64_MAX)
        or base_offset_of(at) < next_offset
        or attributes_of(at) & _NOT_PLAIN
    ):
        return 0
    end: _Size = position + size_of(at)
    checked: object = data[position + CHECKED_POSITION : end]
    found: cython.uint = _crc32c(checked)
    return found == crc_of(at)


@cython.cfunc
@cython.exceptval(-2, check=True)
def _map(
    key_map: KeyMap,
    body: _Pointer,
    size: _Size,
    count: _Size,
    base_offset: _Long,
    first_offset: _Long,
    aimed: cython.pointer[_Aimed],
) -> _Long:
    """The offset of the first record that found no slot; -1 if none was missing so far.

    The last few keys are left in `aimed`.
    """
    cursor: _Cursor
    fields: _Fields
    left_out: _Long
    _begin(cython.address(cursor), body, size, count)
    for _ in range(count):
        _next(cython.address(cursor), cython.address(fields))
        if fields.key_size < 0 or base_offset + fields.offset_delta < first_offset:
            continue
        if aimed.count == _AHEAD:
            left_out = _put_all(key_map, aimed)
            if left_out >= 0:
                return left_out
        slot: cython.pointer[_Slot] = cython.address(aimed.keys[aimed.count])
        key_map._aim(fields.key, fields.key_size, slot)
        slot.offset_after = base_offset + fields.offset_delta + 1
        aimed.count += 1
    _end(cython.address(cursor), count)
    return -1


@cython.cfunc
@cython.exceptval(check=False)
def _put_all(key_map: KeyMap, aimed: cython.pointer[_Aimed]) -> _Long:
    """Note the keys; the offset of the first that found no slot, -1 if all did."""
    number: cython.int
    slot: cython.pointer[_Slot]
    for number in range(aimed.count):
        slot = cython.address(aimed.keys[number])
        if not key_map._put(slot, slot.offset_after - 1):
            return slot.offset_after - 1
    aimed.count = 0
    return -1


@cython.cfunc
@cython.exceptval(-1)
def _begin(
    cursor: cython.pointer[_Cursor], body: _Pointer, size: _Size, count: _Size
) -> cython.int:
    if not 0 <= count <= size // RECORD_SIZE_MIN:
        raise CorruptRecords(f"{count} records do not fit in {size} bytes")
    cursor.at = body
    cursor.run_end = cursor.end = body + size
    cursor.left = count
    cursor.offset_delta = -1
    cursor.fault = cython.NULL
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _end(cursor: cython.pointer[_Cursor], count: _Size) -> cython.int:
    if cursor.at != cursor.run_end:
        raise CorruptRecords(f"{cursor.run_end - cursor.at} bytes are left behind {count} records")
    return 0


# Sifting


@cython.cclass
class Sieve:
    """As `_reference_cleaning.Sieve`."""

    latest_epoch = cython.declare(_Long, visibility="readonly")
    seen_records = cython.declare(_Long, visibility="readonly")
    kept_records = cython.declare(_Long, visibility="readonly")
    seen_batches = cython.declare(_Long, visibility="readonly")
    kept_batches = cython.declare(_Long, visibility="readonly")
    rewritten_batches = cython.declare(_Long, visibility="readonly")
    _key_map: KeyMap
    _mapped_end: _Long
    _now_ms: _Long
    _horizon_ms: _Long
    _expires: cython.bint
    _last_offsets: dict
    # Of the body that was sifted last.
    _kept: _Size
    _newest: _Long
    _has_tombstones: cython.bint

    def __init__(
        self,
        key_map: KeyMap,
        mapped_end: _Long,
        now_ms: _Long,
        horizon_ms: _Long,
        expires: cython.bint,
        last_offsets: object,
        latest_epoch: _Long,
    ):
        self.latest_epoch = latest_epoch
        self.seen_records = self.kept_records = 0
        self.seen_batches = self.kept_batches = self.rewritten_batches = 0
        self._key_map = key_map
        self._mapped_end = mapped_end
        self._now_ms = now_ms
        self._horizon_ms = horizon_ms
        self._expires = expires
        self._last_offsets = dict(last_offsets)

    def sift(
        self, data: object, position: _Size, next_offset: _Long, out: bytearray, end: _Size
    ) -> tuple:
        """As `_reference_cleaning.Sieve.sift`."""
        buffer: Py_buffer
        target: Py_buffer
        at: _Pointer
        size: _Size
        view = memoryview(out)
        PyObject_GetBuffer(data, cython.address(buffer), PyBUF_SIMPLE)
        PyObject_GetBuffer(out, cython.address(target), PyBUF_WRITABLE)
        try:
            while _is_plain(data, cython.address(buffer), position, next_offset):
                at = cython.cast(_Pointer, buffer.buf) + position
                size = size_of(at)
                if target.len - end < _OUT_TIMES * size:
                    break
                end = self._sift_batch(at, size, view, cython.cast(_Pointer, target.buf) + end, end)
                position += size
                next_offset = last_offset_of(at) + 1
            return position, next_offset, end
        finally:
            PyBuffer_Release(cython.address(target))
            PyBuffer_Release(cython.address(buffer))
            view.release()

    @cython.cfunc
    @cython.exceptval(-1)
    def _sift_batch(
        self, at: _Pointer, size: _Size, view: object, out: _Pointer, end: _Size
    ) -> _Size:
        """Write what is left of the batch at `at` to `out`; the position behind it."""
        count: _Size = record_count_of(at)
        attributes: cython.int = attributes_of(at)
        base: _Long = base_timestamp_of(at)
        body_size: _Size = self._sift(
            at + HEADER_SIZE,
            size - HEADER_SIZE,
            count,
            base_offset_of(at),
            attributes,
            base,
            base,
            out + HEADER_SIZE,
        )
        sets_horizon: cython.bint = self._has_tombstones and not attributes & DELETE_HORIZON
        self.seen_batches += 1
        begins_epoch: cython.bint = leader_epoch_of(at) > self.latest_epoch
        if begins_epoch:
            self.latest_epoch = leader_epoch_of(at)
        if not self._kept and not begins_epoch and not self._is_last(at):
            return end
        self.kept_batches += 1
        memcpy(out, at, HEADER_SIZE)
        if self._kept == count and not sets_horizon:
            return end + size
        self.rewritten_batches += 1
        if not self._kept:
            body_size = 0
            put_int16(out + 21, attributes & ~(DELETE_HORIZON | CODEC_MASK))
            put_int64(out + 27, -1)
        else:
            if sets_horizon:
                attributes |= DELETE_HORIZON
                self.seen_records -= count
                self.kept_records -= self._kept
                body_size = self._sift(
                    at + HEADER_SIZE,
                    size - HEADER_SIZE,
                    count,
                    base_offset_of(at),
                    attributes & ~DELETE_HORIZON,
                    base,
                    self._horizon_ms,
                    out + HEADER_SIZE,
                )
                put_int64(out + 27, self._horizon_ms)
            put_int16(out + 21, attributes)
            if not attributes & LOG_APPEND_TIME:
                put_int64(out + 35, self._newest)
        put_int32(out + 57, self._kept)
        put_int32(out + 8, HEADER_SIZE + body_size - PREFIX_SIZE)
        sealed: object = view[end + CHECKED_POSITION : end + HEADER_SIZE + body_size]
        put_int32(out + 17, cython.cast(cython.uint, _crc32c(sealed)))
        return end + HEADER_SIZE + body_size

    @cython.cfunc
    @cython.exceptval(-1)
    def _is_last(self, at: _Pointer) -> cython.int:
        """Whether the batch stays for its producer's sequence."""
        if producer_id_of(at) < 0:
            return 0
        last: object = self._last_offsets.get(producer_id_of(at))
        return last is not None and last == last_offset_of(at)

    @cython.cfunc
    @cython.exceptval(-1)
    def _sift(  # noqa: PLR0913 - numbers, not a tuple: it is called for each batch
        self,
        body: _Pointer,
        size: _Size,
        count: _Size,
        base_offset: _Long,
        attributes: cython.int,
        base: _Long,
        new_base: _Long,
        out: _Pointer,
    ) -> _Size:
        """Copy the records that stay; timestamps then count from `new_base`. How many bytes."""
        first: _Pointer = out
        cursor: _Cursor
        fields: _Fields
        seen: _Seen[16]
        one: cython.pointer[_Seen]
        held: cython.int = 0
        left: _Size = count
        has_horizon: cython.bint = attributes & DELETE_HORIZON != 0
        is_expired: cython.bint = has_horizon and self._expires and base <= self._now_ms
        is_moved: cython.bint = base != new_base and not attributes & LOG_APPEND_TIME
        self._kept, self._newest, self._has_tombstones = 0, -1, False
        _begin(cython.address(cursor), body, size, count)
        while left:
            left -= 1
            one = cython.address(seen[held])
            one.at = cursor.at
            _next(cython.address(cursor), cython.address(fields))
            one.end = cursor.at
            one.offset = base_offset + fields.offset_delta
            one.timestamp = _sum(base, fields.timestamp_delta)
            one.is_tombstone = fields.value_size < 0
            one.stays = one.offset >= self._mapped_end
            one.is_asked = not (
                one.stays or fields.key_size < 0 or (one.is_tombstone and is_expired)
            )
            if one.is_asked:
                self._key_map._aim(fields.key, fields.key_size, cython.address(one.aimed))
            held += 1
            if held == _AHEAD or not left:
                out += self._copy(seen, held, out, is_moved, new_base)
                held = 0
        _end(cython.address(cursor), count)
        self.seen_records += count
        self.kept_records += self._kept
        return out - first

    @cython.cfunc
    @cython.exceptval(-1)
    def _copy(
        self,
        seen: cython.pointer[_Seen],
        count: cython.int,
        out: _Pointer,
        is_moved: cython.bint,
        new_base: _Long,
    ) -> _Size:
        """Decide on records whose slots are in the cache by now, and copy those that stay."""
        first: _Pointer = out
        one: cython.pointer[_Seen]
        number: cython.int
        for number in range(count):
            one = seen + number
            if one.is_asked:
                one.stays = one.offset >= self._key_map._get(cython.address(one.aimed))
                self._has_tombstones |= one.stays and one.is_tombstone
            if not one.stays:
                continue
            if one.timestamp > self._newest or not self._kept:
                self._newest = one.timestamp
            self._kept += 1
            if is_moved:
                out = _put_moved(out, one.at, one.end, _difference(one.timestamp, new_base))
            else:
                memcpy(out, one.at, one.end - one.at)
                out += one.end - one.at
        return out - first

    def sift_body(self, body: object, header: object) -> object:
        """As `_reference_cleaning.Sieve.sift_body`."""
        buffer: Py_buffer
        target: Py_buffer
        PyObject_GetBuffer(body, cython.address(buffer), PyBUF_SIMPLE)
        try:
            out: bytearray = bytearray(_OUT_TIMES * buffer.len)
            PyObject_GetBuffer(out, cython.address(target), PyBUF_WRITABLE)
            try:
                first: _Pointer = cython.cast(_Pointer, target.buf)
                count: _Size = header.record_count
                attributes: cython.int = header.attributes
                base: _Long = header.base_timestamp
                source: _Pointer = cython.cast(_Pointer, buffer.buf)
                size: _Size = self._sift(
                    source, buffer.len, count, header.base_offset, attributes, base, base, first
                )
                sets_horizon: cython.bint = self._has_tombstones and not attributes & DELETE_HORIZON
                if self._kept == count and not sets_horizon:
                    return None
                if sets_horizon:
                    self.seen_records -= count
                    self.kept_records -= self._kept
                    size = self._sift(
                        source,
                        buffer.len,
                        count,
                        header.base_offset,
                        attributes,
                        base,
                        self._horizon_ms,
                        first,
                    )
                    base = self._horizon_ms
                is_own: cython.bint = self._kept and not attributes & LOG_APPEND_TIME
                return _reference_cleaning.SiftedBody(
                    cython.cast(cython.p_char, first)[:size],
                    self._kept,
                    base,
                    self._newest if is_own else header.max_timestamp,
                    bool(sets_horizon or attributes & DELETE_HORIZON),
                )
            finally:
                PyBuffer_Release(cython.address(target))
        finally:
            PyBuffer_Release(cython.address(buffer))

    def batch_left(self, header: object, original: object, sifted: object) -> object:
        """As `_reference_cleaning.Sieve.batch_left`."""
        self.seen_batches += 1
        count = header.record_count if sifted is None else sifted.record_count
        begins_epoch: cython.bint = header.partition_leader_epoch > self.latest_epoch
        if begins_epoch:
            self.latest_epoch = header.partition_leader_epoch
        is_last: cython.bint = self._last_offsets.get(header.producer_id) == header.last_offset
        if not (count or is_last or begins_epoch):
            return None
        self.kept_batches += 1
        if sifted is None:
            return original
        self.rewritten_batches += 1
        if not count:
            return _reference_cleaning.empty_batch(header)
        return _reference_cleaning.rebuilt_batch(header, sifted, sifted.body)


@cython.cfunc
@cython.inline
@cython.exceptval(-1, check=True)
def _sum(base: _Long, delta: _Long) -> _Long:
    if delta > _INT64_MAX - base if base > 0 else delta < _INT64_MIN - base:
        raise CorruptRecords("a record's timestamp has more than 64 bits")
    return base + delta


@cython.cfunc
@cython.inline
@cython.exceptval(-1, check=True)
def _difference(timestamp: _Long, base: _Long) -> _Long:
    if timestamp < _INT64_MIN + base if base > 0 else timestamp > _INT64_MAX + base:
        raise CorruptRecords("a record's timestamp has more than 64 bits")
    return timestamp - base


@cython.cfunc
@cython.exceptval(check=False)
def _put_moved(out: _Pointer, at: _Pointer, end: _Pointer, timestamp_delta: _Long) -> _Pointer:
    """Copy the record from `at` to `end`, with another timestamp delta."""
    at = _behind_varint(at)  # its length
    attributes: cython.uchar = at[0]
    at = _behind_varint(at + 1)
    rest: _Size = end - at
    out = put_varint(out, 1 + varint_size(timestamp_delta) + rest)
    out[0] = attributes
    out = put_varint(out + 1, timestamp_delta)
    memcpy(out, at, rest)
    return out + rest


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _behind_varint(at: _Pointer) -> _Pointer:
    while at[0] >= 0x80:
        at += 1
    return at + 1
