"""Records as Arrow, in the columns of Spark's Kafka connector (pure).

| column        | Spark                                     | null                         |
|---------------|-------------------------------------------|------------------------------|
| key, value    | BINARY                                    | as in the record             |
| topic         | STRING                                    | never                        |
| partition     | INT                                       | never                        |
| offset        | BIGINT                                    | never                        |
| timestamp     | TIMESTAMP, from milliseconds              | where Spark has no such time |
| timestampType | INT: 0 the producer's, 1 the broker's     | never                        |
| headers       | ARRAY<STRUCT<key: STRING, value: BINARY>> | where there are none         |
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow

from kdist.client.consumer.batch import Batch
from kdist.model import TopicPartition

COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " timestampType INT"
)
HEADERS = ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"

_HEADER = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
_FIELDS = [
    ("key", pyarrow.binary()),
    ("value", pyarrow.binary()),
    ("topic", pyarrow.string()),
    ("partition", pyarrow.int32()),
    ("offset", pyarrow.int64()),
    ("timestamp", pyarrow.timestamp("us", tz="UTC")),
    ("timestampType", pyarrow.int32()),
]
SCHEMA = pyarrow.schema(_FIELDS)
SCHEMA_WITH_HEADERS = pyarrow.schema([*_FIELDS, ("headers", pyarrow.list_(_HEADER))])

# Spark takes a batch for a unit of work: small ones cost more each than their records, and large
# ones wait in memory on both sides of the socket.
_ROWS_MIN = 8_192
_BYTES_MAX = 4 << 20
_TIME_MS_MAX = ((1 << 63) - 1) // 1000  # Spark counts microseconds


class Rows:
    """Records of one partition that become one Arrow batch."""

    def __init__(self, partition: TopicPartition, with_headers: bool) -> None:
        self._partition = partition
        self._with_headers = with_headers
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._offsets = array("q")
        self._timestamps = array("q")
        self._types = array("i")
        self._headers: list[Any] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    @property
    def is_enough(self) -> bool:
        """Whether to give them away before more are added."""
        return len(self) >= _ROWS_MIN or self.size_bytes >= _BYTES_MAX

    def add(self, batch: Batch) -> None:
        """Add a batch's records; there may be none between the offsets that it is cut to."""
        records = batch.raw_records()
        if not records:
            return
        offsets, timestamps, keys, values, headers = zip(*records, strict=True)
        self._offsets.extend(offsets)
        self._timestamps.extend(timestamps)
        self._keys.extend(keys)
        self._values.extend(values)
        self._types.extend([batch.header.timestamp_type] * len(offsets))
        if self._with_headers:
            self._headers.extend(headers)
        self.size_bytes += len(batch.body)

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Them all."""
        count = len(self)
        arrays = [
            pyarrow.array(self._keys, pyarrow.binary()),
            pyarrow.array(self._values, pyarrow.binary()),
            pyarrow.repeat(pyarrow.scalar(self._partition.topic), count),
            pyarrow.repeat(pyarrow.scalar(self._partition.partition, pyarrow.int32()), count),
            _integers(pyarrow.int64(), self._offsets),
            self._times().cast(pyarrow.timestamp("us", tz="UTC")),
            _integers(pyarrow.int32(), self._types),
        ]
        if not self._with_headers:
            return pyarrow.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        headers = pyarrow.array([each or None for each in self._headers], pyarrow.list_(_HEADER))
        return pyarrow.RecordBatch.from_arrays([*arrays, headers], schema=SCHEMA_WITH_HEADERS)

    def _times(self) -> pyarrow.Array:
        kind = pyarrow.timestamp("ms", tz="UTC")
        if min(self._timestamps) >= -_TIME_MS_MAX and max(self._timestamps) <= _TIME_MS_MAX:
            return _integers(kind, self._timestamps)
        # A producer took nanoseconds for milliseconds, say: its records shall not stop a load.
        held = [each if abs(each) <= _TIME_MS_MAX else None for each in self._timestamps]
        return pyarrow.array(held, kind)


def to_arrow(
    partition: TopicPartition, batches: Iterable[Batch], with_headers: bool
) -> Iterator[pyarrow.RecordBatch]:
    """The batches of one partition as Arrow's, small ones put together."""
    rows = Rows(partition, with_headers)
    for batch in batches:
        rows.add(batch)
        if rows.is_enough:
            yield rows.to_arrow()
            rows = Rows(partition, with_headers)
    if len(rows):
        yield rows.to_arrow()


def _integers(kind: Any, numbers: array[int]) -> Any:
    return pyarrow.Array.from_buffers(kind, len(numbers), [None, pyarrow.py_buffer(numbers)])
