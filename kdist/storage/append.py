"""Appends in progress: which batches can be appended together, at which offsets and position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kdist.errors import ApiError, OutOfDescriptors
from kdist.records.batch import Batch, BatchHeader
from kdist.records.produced import BatchTotals, assign, batch_totals
from kdist.runtime.files import Buffer
from kdist.storage.producers import Duplicate, Producer, ProducerStates
from kdist.storage.segment import Segment

_NOTHING = batch_totals(())


def following(batches: Sequence[Batch], producers: ProducerStates) -> Sequence[Batch]:
    """The first of these batches, and those after it that may be appended with it (pure).

    It stops before a batch that is a duplicate or out of sequence, judged by its producer's state
    in the log, or by the producer's previous batch among these.
    """
    latest: dict[int, BatchHeader] = {}
    for number, (header, _) in enumerate(batches):
        producer_id = header.producer_id
        if producer_id >= 0:
            if number and not _follows(header, latest.get(producer_id), producers):
                return batches[:number]
            latest[producer_id] = header
    return batches


def _follows(header: BatchHeader, before: BatchHeader | None, producers: ProducerStates) -> bool:
    if before is not None:
        return (
            header.producer_epoch == before.producer_epoch
            and header.base_sequence == before.last_sequence + 1
            and header.is_transactional == before.is_transactional
        )
    try:
        return producers.check(header) is None
    except ApiError:
        return False


def note(
    segment: Segment,
    position: int,
    batches: Sequence[Batch],
    offsets: Sequence[int],
    totals: BatchTotals,
    interval_bytes: int,
) -> None:
    """Have the segment and its indexes reflect batches that are now in its file at `position`.

    `totals`: the result of `batch_totals`. `interval_bytes`: `index.interval.bytes`.
    """
    end = position + totals.size
    if len(batches) > 1 and segment.note_group(position, end, totals.newest_ms, interval_bytes):
        return
    try:
        for (header, data), offset in zip(batches, offsets, strict=True):
            last_offset = offset + header.last_offset_delta
            segment.note(position, len(data), last_offset, header.max_timestamp, interval_bytes)
            position += len(data)
    finally:
        segment.size = end  # even if an index could not be written


def reserve_space(segment: Segment, end: int) -> None:
    """Reserve disk space up to `end`. If the file cannot be opened, the write will raise that."""
    try:
        segment.preallocate(end)
    except OutOfDescriptors:
        pass


def undo(segment: Segment) -> None:
    """Cut off what a failed write has left after the segment's end."""
    try:
        segment.trim()
    except OutOfDescriptors:
        pass  # then the file was not open before either, and nothing was written


class Appended(NamedTuple):
    """The result of `Log.append`: the batches have the offsets `start_offset` to `end_offset`.

    If `duplicate` is set, the batch was a retry: nothing was written, and the offsets are those of
    the first append.
    """

    start_offset: int
    end_offset: int
    duplicate: Duplicate | None = None


class Append:
    """A reserved append: from `start_offset` up to `end_offset`, at `position`.

    If `duplicate` is set, the batch is a retry: nothing is written, and the offsets are those of
    the first append, which may still be in progress: it counts once the log end offset has passed
    it. Owner: whoever reserved it, until it is published or abandoned.
    """

    __slots__ = (
        "batches",
        "buffers",
        "duplicate",
        "end_offset",
        "offsets",
        "position",
        "producers",
        "segment",
        "start_offset",
        "totals",
    )

    def __init__(
        self,
        segment: Segment,
        position: int,
        start_offset: int,
        batches: Sequence[Batch] = (),
        totals: BatchTotals = _NOTHING,
    ) -> None:
        self.segment = segment
        self.position = position
        self.start_offset = start_offset
        self.end_offset = start_offset + totals.offset_count
        self.batches = batches
        self.totals = totals
        self.offsets: Sequence[int] = ()  # each batch's base offset, once assigned by `place`
        self.buffers: list[Buffer] = [data for _, data in batches]
        self.producers: dict[int, Producer | None] | None = None  # their states before this append
        self.duplicate: Duplicate | None = None

    @classmethod
    def of_duplicate(cls, segment: Segment, duplicate: Duplicate) -> Append:
        """The append for a retried batch: nothing to write, the offsets of the first append."""
        append = cls(segment, 0, duplicate.first_offset)
        append.end_offset = duplicate.last_offset + 1
        append.offsets = (duplicate.first_offset,)
        append.duplicate = duplicate
        return append

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return self.totals.size

    def place(self, leader_epoch: int) -> None:
        """Write base offset and leader epoch into each batch."""
        self.offsets = assign(self.batches, self.start_offset, leader_epoch)

    def advance(self, producers: ProducerStates) -> None:
        """Advance the producers' states past the placed batches, keeping the old ones for undo."""
        before: dict[int, Producer | None] = {}
        for (header, _), offset in zip(self.batches, self.offsets, strict=True):
            producer_id = header.producer_id
            if producer_id >= 0:
                before.setdefault(producer_id, producers.producer(producer_id))
                producers.append(header, offset)
        self.producers = before

    def write(self) -> None:
        """Write to the file. After `DiskFull` or `DiskFailed` the log must abandon this append."""
        if self.buffers:
            self.segment.file.write(self.buffers, self.position)
