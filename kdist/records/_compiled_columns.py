# cython: boundscheck=False, wraparound=False
"""Type checks and sizes of columns to be encoded, compiled by Cython."""

from __future__ import annotations

from array import array

import cython

if not cython.compiled:
    raise ImportError("the compiled record codec has not been built")

from cython.cimports.cpython.bytes import PyBytes_GET_SIZE
from cython.cimports.cpython.long import PyLong_AsLongLongAndOverflow

from kdist.records.record import INT64_MAX, bytes_column, check_lengths, deltas_column

_Size = cython.typedef(cython.Py_ssize_t)
_Long = cython.typedef(cython.longlong)

_FAR = cython.declare(_Long, INT64_MAX // 2)  # the difference of two smaller ones fits 64 bits


def bytes_rows(column: object, what: str) -> list:
    """As `bytes_column`, to which it passes all but bytes and None."""
    rows: list = list(column)
    for row in rows:
        if row is not None and not isinstance(row, bytes):
            return bytes_column(rows, what)
    return rows


def delta_rows(timestamps: object, base_timestamp: object) -> list:
    """As `deltas_column`, to which it passes all but plain ints of moderate size."""
    rows: list = []
    overflow: cython.int = 0
    if type(base_timestamp) is not int:
        return deltas_column(timestamps, base_timestamp)
    base: _Long = PyLong_AsLongLongAndOverflow(base_timestamp, cython.address(overflow))
    for item in timestamps:
        if not -_FAR < base < _FAR or overflow or type(item) is not int:
            return deltas_column(timestamps, base_timestamp)
        timestamp: _Long = PyLong_AsLongLongAndOverflow(item, cython.address(overflow))
        if overflow or not -_FAR < timestamp < _FAR:
            return deltas_column(timestamps, base_timestamp)
        rows.append(timestamp - base)
    return rows


def running_sizes(values: list, keys: list | None, overhead_bytes: _Size) -> object:
    """As `_reference.running_sizes`: 50 ns for a record that is not in the core's cache."""
    count: _Size = len(values)
    check_lengths(count, keys=keys)
    sizes = array("q", bytes(8 * (count + 1)))
    out: cython.longlong[::1] = sizes
    # The caller may own these lists, and another thread may have changed them during the calls
    # above. Below nothing releases the GIL.
    if len(values) != count or (keys is not None and len(keys) != count):
        return None
    total: _Long = 0
    i: _Size
    for i in range(count):
        value = values[i]
        if value is not None:
            if not isinstance(value, bytes):
                return None
            total += PyBytes_GET_SIZE(value)
        if keys is not None:
            key = keys[i]
            if key is not None:
                if not isinstance(key, bytes):
                    return None
                total += PyBytes_GET_SIZE(key)
        total += overhead_bytes
        out[i + 1] = total
    return sizes
