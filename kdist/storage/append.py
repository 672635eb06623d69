"""Batches on their way into a log: where they go, and what the leader writes into them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from kdist.errors import ApiError
from kdist.model import NO_TIMESTAMP
from kdist.records.batch import LENGTH_PREFIX_SIZE, Batch, BatchHeader
from kdist.runtime.files import Buffer
from kdist.storage.producers import Duplicate, Producer, ProducerStates
from kdist.storage.segment import Segment

_ASSIGNED = struct.Struct(">qii")  # base offset, length, leader epoch: what a leader writes into


def assign(data: Buffer, offset: int, leader_epoch: int) -> list[Buffer]:
    """Write into a batch what the leader assigns; the buffers that make it up.

    In place if its bytes can be written to, else in a copy of the part that changes.
    """
    length = len(data) - LENGTH_PREFIX_SIZE  # as it was
    try:
        _ASSIGNED.pack_into(data, 0, offset, length, leader_epoch)
    except TypeError:  # how `struct` says that it cannot write there
        return [_ASSIGNED.pack(offset, length, leader_epoch), memoryview(data)[_ASSIGNED.size :]]
    return [data]


class Measured(NamedTuple):
    """Batches together: bytes, the offset behind the last, their newest timestamp in ms."""

    size: int
    end_offset: int
    newest_ms: int
    has_producers: bool
    """Whether any has a producer id."""


def measure(batches: Sequence[Batch], start_offset: int) -> Measured:
    """What a log wants to know of batches that shall begin at `start_offset` (pure)."""
    size, end_offset, newest_ms, has_producers = 0, start_offset, NO_TIMESTAMP, False
    for (_, _, _, _, _, _, delta, _, max_timestamp, producer_id, _, _, _), data in batches:
        size += len(data)
        end_offset += delta + 1
        if max_timestamp > newest_ms:
            newest_ms = max_timestamp
        if producer_id >= 0:
            has_producers = True
    return Measured(size, end_offset, newest_ms, has_producers)


def following(batches: Sequence[Batch], producers: ProducerStates) -> Sequence[Batch]:
    """The first of these batches, and those behind it that may be appended with it (pure).

    Up to one that its producer sent before or out of order, as far as can be told here: by what the
    log knows of the producer, or by its batch before that in the group.
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


class Appended(NamedTuple):
    """What `Log.append` says: the batches have the offsets from `start_offset` to `end_offset`.

    If `duplicate` is set, the producer sent this before, nothing was written, and the offsets are
    those of then.
    """

    start_offset: int
    end_offset: int
    duplicate: Duplicate | None = None


class Append:
    """Batches on their way into a log: from `start_offset` up to `end_offset`, at `position`.

    If `duplicate` is set, the producer sent this before: nothing is written, and the offsets are
    the old ones. The first copy may still be under way: it counts once the log's end has passed it.
    Owner: whoever reserved it, until it is published or abandoned.
    """

    __slots__ = (
        "buffers",
        "duplicate",
        "end_offset",
        "placed",
        "position",
        "producers",
        "record_count",
        "segment",
        "size",
        "start_offset",
        "start_offsets",
    )

    def __init__(self, segment: Segment, position: int, start_offset: int) -> None:
        self.segment = segment
        self.position = position
        self.start_offset = self.end_offset = start_offset
        self.size = 0
        self.record_count = 0
        self.start_offsets: list[int] = []  # of each batch
        # Of each batch, for the indexes: position, size, last offset, max timestamp.
        self.placed: list[tuple[int, int, int, int]] = []
        self.buffers: list[Buffer] = []
        self.producers: dict[int, Producer | None] | None = None  # as they were before
        self.duplicate: Duplicate | None = None

    @classmethod
    def of_duplicate(cls, segment: Segment, duplicate: Duplicate) -> Append:
        """What a batch gets that was appended before: nothing to write, and its offsets of then."""
        append = cls(segment, 0, duplicate.first_offset)
        append.end_offset = duplicate.last_offset + 1
        append.start_offsets.append(duplicate.first_offset)
        append.duplicate = duplicate
        return append

    def place(self, batches: Sequence[Batch], leader_epoch: int) -> None:
        """Place batches one behind the other, and write into each what the leader assigns."""
        offset, position, record_count = self.start_offset, self.position, 0
        start_offsets, buffers, placed = self.start_offsets, self.buffers, self.placed
        for (_, _, _, _, _, _, delta, _, max_timestamp, _, _, _, count), data in batches:
            size = len(data)
            start_offsets.append(offset)
            buffers += assign(data, offset, leader_epoch)
            last_offset = offset + delta
            placed.append((position, size, last_offset, max_timestamp))
            offset = last_offset + 1
            position += size
            record_count += count
        self.end_offset, self.record_count = offset, record_count
        self.size = position - self.position

    def advance(self, producers: ProducerStates, batches: Sequence[Batch]) -> None:
        """Have the producers of these batches, which were placed, go on; so it can be undone."""
        before: dict[int, Producer | None] = {}
        for (header, _), offset in zip(batches, self.start_offsets, strict=True):
            producer_id = header.producer_id
            if producer_id >= 0:
                before.setdefault(producer_id, producers.producer(producer_id))
                producers.append(header, offset)
        self.producers = before

    def note(self, interval_bytes: int) -> None:
        """Tell the segment what is now in its file. `interval_bytes` is `index.interval.bytes`."""
        segment, placed = self.segment, self.placed
        newest_ms = max([max_timestamp for _, _, _, max_timestamp in placed])
        end = self.position + self.size
        if not segment.note_group(self.position, end, newest_ms, interval_bytes):
            for each in placed:
                segment.note(*each, interval_bytes)

    def write(self) -> None:
        """Put the bytes into the file. After `DiskFull` or `DiskFailed` the log must abandon it."""
        if self.buffers:
            self.segment.file.write(self.buffers, self.position)
