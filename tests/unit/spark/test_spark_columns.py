"""Records as Arrow: what a batch becomes, also one that holds none of the wanted offsets."""

from __future__ import annotations

from kdist.client.consumer.batch import Batch
from kdist.model import TopicPartition
from kdist.records.batch import HEADER, read_header
from kdist.records.build import build_batch
from kdist.spark.columns import SCHEMA, to_arrow

PARTITION = TopicPartition("clicks", 3)


def compacted() -> bytes:
    """Offsets 10 to 20, of which only the first is left."""
    data = build_batch([b"first"], timestamp_ms=1_000, base_offset=10)
    HEADER.pack_into(data, 0, *read_header(data)._replace(last_offset_delta=10))
    return bytes(data)


def batch_of(data: bytes, start: int = 0) -> Batch:
    return Batch(PARTITION, read_header(data), data, 0, start)


def test_records_become_rows_of_their_columns() -> None:
    data = bytes(build_batch([b"a", None], [b"k", None], timestamp_ms=1_000, base_offset=7))
    (rows,) = to_arrow(PARTITION, [batch_of(data)], with_headers=False)
    assert rows.schema == SCHEMA
    found = rows.to_pydict()
    assert (found["value"], found["key"]) == ([b"a", None], [b"k", None])
    assert (found["topic"], found["partition"]) == (["clicks"] * 2, [3] * 2)
    assert found["offset"] == [7, 8]


def test_a_timestamp_that_spark_cannot_represent_is_null() -> None:
    times_ms = [1_000, 1_700_000_000_000_000_000, -1]
    data = bytes(build_batch([b"a"] * 3, timestamps=times_ms, timestamp_ms=0))
    (rows,) = to_arrow(PARTITION, [batch_of(data)], with_headers=False)
    assert rows.schema == SCHEMA
    assert rows.column("timestamp").cast("int64").to_pylist() == [1_000_000, None, -1_000]


def test_a_compacted_batch_without_a_record_in_the_range_gives_no_row() -> None:
    behind = batch_of(compacted(), start=15)
    before = batch_of(compacted()).part(11, 15)
    assert list(to_arrow(PARTITION, [behind, before], with_headers=True)) == []
