"""Reads one range's batches from its partition's leader, in a Spark task.

The consumer reads ahead in a thread of its own while the task converts batches to Arrow. Offsets
without a record (transaction markers, records compacted away) are skipped. An offset that is gone,
by retention or because the topic was recreated, ends the read with `RecordsLost`; without
`failOnDataLoss`, the read goes on at the first offset that is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kdist.client.consumer.batch import Batch
from kdist.client.consumer.consumer import Consumer
from kdist.client.consumer.fetcher import OffsetOutOfRange
from kdist.errors import KdistError
from kdist.spark.ranges import Range
from kdist.spark.security_file import read_security

# Measured: larger fetches changed nothing, smaller ones cost a tenth.
_FETCHING: dict[str, Any] = {
    "client_id": "kdist-spark",
    "max_partition_fetch_bytes": 4 << 20,
    "fetch_max_bytes": 16 << 20,
}
_POLL_S = 0.5  # a range that ends in offsets without records gives no batch: check the position


class RecordsLost(KdistError):
    """Records of the range are gone, and `failOnDataLoss` is true."""


class Reading(NamedTuple):
    """A task's options, besides its range."""

    bootstrap: str
    fail_on_data_loss: bool
    consumer: dict[str, Any]
    security_file: str | None = None


def read_range(reading: Reading, wanted: Range) -> Iterator[Batch]:
    """The batches of the range, the first and the last cut to it."""
    security = read_security(reading.security_file)
    settings = {**_FETCHING, **reading.consumer, **security, "auto_offset_reset": "none"}
    with Consumer(reading.bootstrap, enable_auto_commit=False, **settings) as consumer:
        consumer.assign([wanted.partition])
        consumer.seek(wanted.partition, wanted.start)
        position = wanted.start
        while position < wanted.end:
            try:
                batches = consumer.poll_batches(_POLL_S)
            except OffsetOutOfRange as gone:
                position = _next_left(consumer, gone.offset, wanted, reading.fail_on_data_loss)
                continue
            for batch in batches:
                if batch.start < wanted.end:
                    yield batch if batch.end <= wanted.end else batch.part(batch.start, wanted.end)
                position = batch.end
            if not batches:
                position = _position(consumer, wanted, reading.fail_on_data_loss)


def _position(consumer: Consumer, wanted: Range, fail_on_data_loss: bool) -> int:
    """The position after a poll without batches; beyond a log that ends before the range does."""
    position = consumer.position(wanted.partition)
    (end,) = consumer.end_offsets([wanted.partition]).values()
    if position < wanted.end and end <= position:
        return _next_left(consumer, position, wanted, fail_on_data_loss)
    return position


def _next_left(consumer: Consumer, offset: int, wanted: Range, fail_on_data_loss: bool) -> int:
    """Where to go on after an offset that is gone; the range's end if nothing of it is left.

    `RecordsLost` if that is not allowed.
    """
    partition = wanted.partition
    (start,) = consumer.beginning_offsets([partition]).values()
    (end,) = consumer.end_offsets([partition]).values()
    if fail_on_data_loss:
        raise RecordsLost(
            f"{partition} no longer has offset {offset}: it has {start} to {end} now, and"
            f" {wanted.start} to {wanted.end} are to be read; with failOnDataLoss false, the"
            " read would go on with those that are left"
        ) from None
    if not offset < start < wanted.end:
        return wanted.end
    consumer.seek(partition, start)
    return start
