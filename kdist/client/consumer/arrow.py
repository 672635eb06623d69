"""Columns of records as Arrow arrays, without an object per record (pure).

Only headers do create objects. `arrow` is the `pyarrow` module, which the caller imports, since it
is an optional dependency.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from kdist.records.record import BinaryColumn, HeaderPairs


def binary(arrow: Any, column: BinaryColumn) -> Any:
    """The column as an Arrow array, which shares its buffers: do not append to it afterwards."""
    present = arrow.py_buffer(column.present) if column.null_count else None
    buffers = [present, arrow.py_buffer(column.ends), arrow.py_buffer(column.data)]
    return arrow.Array.from_buffers(arrow.binary(), len(column), buffers)


def integers(arrow: Any, kind: Any, numbers: array[int]) -> Any:
    """The numbers as an Arrow array of type `kind`, which must have the same width."""
    return arrow.Array.from_buffers(kind, len(numbers), [None, arrow.py_buffer(numbers)])


def headers(arrow: Any, rows: Iterable[HeaderPairs]) -> Any:
    """For each record a list of its headers' names and values."""
    pair = arrow.struct([("name", arrow.string()), ("value", arrow.binary())])
    lists = [[{"name": name, "value": value} for name, value in pairs] for pairs in rows]
    return arrow.array(lists, arrow.list_(pair))
