"""The rows of a load as a data source: each record with the columns of its JSON value.

A value that is one JSON object becomes columns. Its bytes are also kept, in `record_value`, if the
columns do not hold all of it, if they are all null, and if it is anything else: so only a tombstone
has nothing in any of them. Two columns are Spark's to finish: `event_time`, null unless the record
gives it as a number, and `date`, the text that it gives it as.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow
import pyarrow.compute
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from kdist.runtime.disk import Disk
from kdist.spark.load.columns_named import (
    DATE,
    EVENT_TIME,
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    VALUE,
)
from kdist.spark.load.counts import Tally, note_count, tally
from kdist.spark.load.decoding import EventTime, Filling, parse
from kdist.spark.options import ReadOptions, read_options
from kdist.spark.source import KdistDataSource, KdistReader, Task

_BEFORE = t.StructType().add(EVENT_TIME, t.TimestampType())
_HEADER = t.StructType().add("key", t.StringType()).add("value", t.BinaryType())
_AFTER = (
    t.StructType()
    .add(KEY, t.BinaryType())
    .add(VALUE, t.BinaryType())
    .add(PARTITION, t.IntegerType())
    .add(OFFSET, t.LongType())
    .add(TIMESTAMP, t.TimestampType())
    .add(HEADERS, t.ArrayType(_HEADER))
    .add(DATE, t.StringType())
)


class Decoding(NamedTuple):
    """How values become rows: `fields` are those of the JSON objects, `names` their columns'.

    Without fields, values stay bytes; without `event_time`, records have none of their own.
    """

    fields: t.StructType | None
    names: tuple[str, ...]
    event_time: EventTime | None
    zone: str
    keeps_all: bool

    @property
    def schema(self) -> t.StructType:
        """The columns of the rows."""
        of_fields = zip(self.names, self.fields or (), strict=True)
        own = [t.StructField(name, each.dataType) for name, each in of_fields]
        return t.StructType([*own, *_BEFORE.fields, *_AFTER.fields])

    def rows(self, records: pyarrow.RecordBatch, undecoded: Counter[str]) -> pyarrow.RecordBatch:
        """The rows of records in the columns of the data source, with headers.

        Counts in `undecoded` those that columns do not hold, by reason.
        """
        values = records.column("value")
        fields = self.fields
        objects, inexact = parse(values.to_pylist() if fields is not None else ())
        filling = Filling(ZoneInfo(self.zone), inexact)
        numbers = range(len(objects))
        columns = filling.columns(fields, objects, numbers) if fields is not None else []
        times, texts = self.event_time.found(objects) if self.event_time else ((), ())
        if fields is not None and not self.keeps_all:
            kept = [row in inexact or _is_empty(each) for row, each in enumerate(objects)]
            is_kept = pyarrow.array(kept, pyarrow.bool_())
            values = pyarrow.compute.if_else(is_kept, values, None)
        undecoded.update(inexact.values())
        arrays = [
            *columns,
            pyarrow.array(times or [None] * len(values), pyarrow.timestamp("us", tz="UTC")),
            records.column("key"),
            values,
            records.column("partition"),
            records.column("offset"),
            records.column("timestamp"),
            records.column("headers"),
            pyarrow.array(texts or [None] * len(values), pyarrow.string()),
        ]
        schema = to_arrow_schema(self.schema, timezone="UTC")
        held = [each.cast(field.type) for each, field in zip(arrays, schema, strict=True)]
        return pyarrow.RecordBatch.from_arrays(held, schema=schema)


def _is_empty(token: dict[str, Any] | None) -> bool:
    """Whether all columns of an object are null, as those of a tombstone."""
    return token is not None and all(each is None for each in token.values())


class RowsReader(KdistReader):
    """Reads as the data source does, decodes in the same task, and notes the records' counts."""

    def __init__(self, options: ReadOptions, decoding: Decoding, counts: str) -> None:
        super().__init__(options)
        self._decoding = decoding
        self._counts = counts

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        found, undecoded = Tally(), Counter[str]()
        for records in super().read(partition):
            found = found.plus(tally(records.column("offset")))
            yield self._decoding.rows(records, undecoded)
        if isinstance(partition, Task):
            note_count(Disk(), self._counts, partition.range, found, undecoded)


class RowsSource(KdistDataSource):
    """The format of a load's own; `source_of` says how it decodes, and where it notes counts."""

    decoding: Decoding
    counts: str

    @classmethod
    def name(cls) -> str:
        return "kdist-load"

    def schema(self) -> t.StructType:
        return self.decoding.schema

    def reader(self, schema: t.StructType) -> DataSourceReader:  # noqa: ARG002
        return RowsReader(read_options(self.options), self.decoding, self.counts)


def source_of(decoding: Decoding, counts: str) -> type[RowsSource]:
    """The data source that decodes so; Spark passes it to its workers by value."""
    return type("LoadSource", (RowsSource,), {"decoding": decoding, "counts": counts})
