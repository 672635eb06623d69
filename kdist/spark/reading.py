"""One range's batches, read from its partition's leader: what a task of Spark's does.

The consumer reads ahead in its own thread while the task makes Arrow of what it has. Offsets that
are no record's (markers of transactions, records compacted away) are passed over. An offset that is
gone, by retention or since the topic was made anew, ends the read with `RecordsLost`, or without
`failOnDataLoss` moves it on to the first one that is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kdist.client.consumer.batch import Batch
from kdist.client.consumer.consumer import Consumer
from kdist.client.consumer.fetcher import OffsetOutOfRange
from kdist.errors import KdistError
from kdist.spark.ranges import Range

# Measured: larger fetches changed nothing, smaller ones cost a tenth.
_FETCHING: dict[str, Any] = {
    "client_id": "kdist-spark",
    "max_partition_fetch_bytes": 4 << 20,
    "fetch_max_bytes": 16 << 20,
}
_LOOK_S = 0.5  # where the last offsets are no records, nothing comes: then the position is asked


class RecordsLost(KdistError):
    """Records that were to be read are gone, and the read was not told to go on without them."""


class Reading(NamedTuple):
    """What a task is given besides its range."""

    bootstrap: str
    fail_on_data_loss: bool
    consumer: dict[str, Any]


def read_range(reading: Reading, wanted: Range) -> Iterator[Batch]:
    """The batches of the range, the first and the last cut to it."""
    settings = {**_FETCHING, **reading.consumer, "auto_offset_reset": "none"}
    with Consumer(reading.bootstrap, enable_auto_commit=False, **settings) as consumer:
        consumer.assign([wanted.partition])
        consumer.seek(wanted.partition, wanted.start)
        position = wanted.start
        while position < wanted.end:
            try:
                batches = consumer.poll_batches(_LOOK_S)
            except OffsetOutOfRange as gone:
                position = _next_left(consumer, gone.offset, wanted, reading.fail_on_data_loss)
                continue
            for batch in batches:
                if batch.start < wanted.end:
                    yield batch if batch.end <= wanted.end else batch.part(batch.start, wanted.end)
                position = batch.end
            if not batches:
                position = _look(consumer, wanted, reading.fail_on_data_loss)


def _look(consumer: Consumer, wanted: Range, fail_on_data_loss: bool) -> int:
    """Where the reader is, when nothing came: at an end before the range's nothing ever will."""
    position = consumer.position(wanted.partition)
    (end,) = consumer.end_offsets([wanted.partition]).values()
    if position < wanted.end and end <= position:
        return _next_left(consumer, position, wanted, fail_on_data_loss)
    return position


def _next_left(consumer: Consumer, offset: int, wanted: Range, fail_on_data_loss: bool) -> int:
    """Where to go on behind an offset that is not there; the range's end if nothing is left."""
    partition = wanted.partition
    (start,) = consumer.beginning_offsets([partition]).values()
    (end,) = consumer.end_offsets([partition]).values()
    if fail_on_data_loss:
        raise RecordsLost(
            f"offset {offset} of {partition} is not there: it has {start} to {end} now, and"
            f" {wanted.start} to {wanted.end} are to be read; with failOnDataLoss false what is"
            " left would be"
        ) from None
    if not offset < start < wanted.end:
        return wanted.end
    consumer.seek(partition, start)
    return start
