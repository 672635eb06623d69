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

from kdist.client.consumer.arrow import binary, integers
from kdist.client.consumer.batch import Batch
from kdist.model import TopicPartition
from kdist.records.codec import decode_keys_into, decode_values_into, encode_records
from kdist.records.record import BinaryColumn, Record

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

# Spark has a cost for each Arrow batch, which for small ones exceeds that of their records. Large
# ones are held in memory on both sides of the socket between Python and Java.
_ROWS_MIN = 8_192
_BYTES_MAX = 4 << 20
_TIME_MS_MAX = ((1 << 63) - 1) // 1000  # Spark counts microseconds


class Rows:
    """Collects records of one partition for one Arrow batch."""

    def __init__(self, partition: TopicPartition, with_headers: bool) -> None:
        self._partition = partition
        self._with_headers = with_headers
        self._keys = BinaryColumn()
        self._values = BinaryColumn()
        self._offsets = array("q")
        self._timestamps = array("q")
        self._types = array("i")
        self._headers: list[Any] = []
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_enough(self) -> bool:
        return len(self) >= _ROWS_MIN or self._size_bytes >= _BYTES_MAX

    def add(self, batch: Batch) -> None:
        """Add a batch's records; there may be none, if it was cut to some offsets."""
        count, body, numbers = len(batch), batch.body, batch.numbers
        if count < len(numbers[0]):
            body, numbers = _of_some(batch.raw_records())
        batch.placed(decode_keys_into, self._keys, body, count)
        batch.placed(decode_values_into, self._values, body, count)
        self._offsets += numbers[0]
        self._timestamps += numbers[1]
        self._types.extend([batch.header.timestamp_type] * count)
        if self._with_headers:
            self._headers += [pairs or None for pairs in batch.headers()]
        self._size_bytes += len(body)

    def to_arrow(self) -> pyarrow.RecordBatch:
        count = len(self)
        arrays = [
            binary(pyarrow, self._keys),
            binary(pyarrow, self._values),
            pyarrow.repeat(pyarrow.scalar(self._partition.topic), count),
            pyarrow.repeat(pyarrow.scalar(self._partition.partition, pyarrow.int32()), count),
            integers(pyarrow, pyarrow.int64(), self._offsets),
            self._times(),
            integers(pyarrow, pyarrow.int32(), self._types),
        ]
        if not self._with_headers:
            return pyarrow.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        headers = pyarrow.array(self._headers, pyarrow.list_(_HEADER))
        return pyarrow.RecordBatch.from_arrays([*arrays, headers], schema=SCHEMA_WITH_HEADERS)

    def _times(self) -> pyarrow.Array:
        in_ms, in_us = pyarrow.timestamp("ms", tz="UTC"), pyarrow.timestamp("us", tz="UTC")
        try:
            return integers(pyarrow, in_ms, self._timestamps).cast(in_us)
        except pyarrow.ArrowInvalid:
            # Out of range, as when a producer sends nanoseconds. That must not stop a load.
            held = [each if abs(each) <= _TIME_MS_MAX else None for each in self._timestamps]
            return pyarrow.array(held, in_ms).cast(in_us)


def _of_some(records: list[Record]) -> tuple[bytearray, tuple[array[int], array[int]]]:
    """The body, offsets and timestamps of a batch of these records."""
    body = encode_records([each.value for each in records], [each.key for each in records])
    offsets = array("q", [each.offset for each in records])
    return body, (offsets, array("q", [each.timestamp for each in records]))


def to_arrow(
    partition: TopicPartition, batches: Iterable[Batch], with_headers: bool
) -> Iterator[pyarrow.RecordBatch]:
    """The batches of one partition as Arrow batches, with small ones merged."""
    rows = Rows(partition, with_headers)
    for batch in batches:
        rows.add(batch)
        if rows.is_enough:
            yield rows.to_arrow()
            rows = Rows(partition, with_headers)
    if len(rows):
        yield rows.to_arrow()
