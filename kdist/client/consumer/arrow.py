"""A batch's records as Arrow columns, straight from its bytes, without an object per record (pure).

Only headers do create objects. `arrow` is the `pyarrow` module, which the caller imports, since it
is an optional dependency.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kdist.records.codec import decode_keys_into, decode_values_into
from kdist.records.record import BinaryColumn

if TYPE_CHECKING:
    from kdist.client.consumer.batch import Batch


def column_of(arrow: Any, batch: Batch, name: str) -> Any:
    """One of `ARROW_COLUMNS`, of the records from the batch's `start` to its `end`.

    Offsets are int64, timestamps in ms, keys and values binary, headers a list of name and value.
    """
    return _COLUMNS[name](arrow, batch)[batch.places]


def binary(arrow: Any, column: BinaryColumn) -> Any:
    """The column as an Arrow array, which shares its buffers: do not append to it afterwards."""
    present = arrow.py_buffer(column.present) if column.null_count else None
    buffers = [present, arrow.py_buffer(column.ends), arrow.py_buffer(column.data)]
    return arrow.Array.from_buffers(arrow.binary(), len(column), buffers)


def integers(arrow: Any, kind: Any, numbers: array[int]) -> Any:
    """The numbers as an Arrow array of type `kind`, which must have the same width."""
    return arrow.Array.from_buffers(kind, len(numbers), [None, arrow.py_buffer(numbers)])


def _bytes(
    decode_into: Callable[[BinaryColumn, Any, int], None],
) -> Callable[[Any, Batch], Any]:
    def of(arrow: Any, batch: Batch) -> Any:
        column = BinaryColumn()
        batch.placed(decode_into, column, batch.body, batch.header.record_count)
        return binary(arrow, column)

    return of


def _headers(arrow: Any, batch: Batch) -> Any:
    pair = arrow.struct([("name", arrow.string()), ("value", arrow.binary())])
    rows = [
        [{"name": name, "value": value} for name, value in pairs] for pairs in batch.all_headers
    ]
    return arrow.array(rows, arrow.list_(pair))


_COLUMNS: dict[str, Callable[[Any, Batch], Any]] = {
    "offset": lambda arrow, batch: integers(arrow, arrow.int64(), batch.numbers[0]),
    "timestamp": lambda arrow, batch: integers(
        arrow, arrow.timestamp("ms", tz="UTC"), batch.numbers[1]
    ),
    "key": _bytes(decode_keys_into),
    "value": _bytes(decode_values_into),
    "headers": _headers,
}
ARROW_COLUMNS = tuple(_COLUMNS)
