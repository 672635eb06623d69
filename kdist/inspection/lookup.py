"""Finding a record by offset or by timestamp in a log that no broker has opened.

Indexes are used where they are sound; a corrupt one costs a walk from the segment's start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from kdist.errors import CorruptRecords
from kdist.inspection.index import last_entry
from kdist.inspection.inspection import PartitionFiles
from kdist.records.batch import BatchHeader
from kdist.records.build import read_records
from kdist.records.record import Record
from kdist.runtime.files import Files
from kdist.storage.faults import CorruptFile
from kdist.storage.index import IndexEntry, TimeIndex
from kdist.storage.names import Suffix
from kdist.storage.scan import DamagedSegment, ScannedBatch, walk_batches
from kdist.storage.segment import Segment


class Found(NamedTuple):
    """Where a record is."""

    path: str
    """The segment's `.log`."""
    position: int
    header: BatchHeader
    record: Record


def segment_number(partition: PartitionFiles, offset: int) -> int:
    """The number of the segment whose range holds `offset`; 0 if it lies before all."""
    return max(bisect_right(partition.bases, offset) - 1, 0)


def find_offset(files: Files, partition: PartitionFiles, offset: int) -> Found | None:
    """The record at `offset` or the next after it; None if there is none. `DamagedSegment`."""
    for base_offset in partition.bases[segment_number(partition, offset) :]:
        segment = Segment.load(files, partition.directory, base_offset)
        try:
            for batch in _batches_from(segment, offset):
                for record in read_found(segment.path, batch):
                    if record.offset >= offset:
                        return Found(segment.path, batch.position, batch.header, record)
        finally:
            segment.close()
    return None


def find_batch(segment: Segment, offset: int) -> tuple[int, BatchHeader] | None:
    """As `Segment.find`, but without the index if that is corrupt."""
    try:
        return segment.find(offset)
    except CorruptFile:
        headers = segment.walk_headers()
        return next((found for found in headers if found[1].last_offset >= offset), None)


def _batches_from(segment: Segment, offset: int) -> Iterator[ScannedBatch]:
    found = find_batch(segment, offset)
    if found is not None:
        yield from walk_batches(
            segment.file, found[0], segment.size, base_offset=segment.base_offset
        )


def find_time(files: Files, partition: PartitionFiles, timestamp: int) -> Found | None:
    """The first record, by offset, whose timestamp is `timestamp` ms or later; None if none is.

    Raises `DamagedSegment` if it meets damage on the way.
    """
    for number, base_offset in enumerate(partition.bases):
        is_last = number == len(partition.bases) - 1
        if not is_last and _is_older(files, partition, base_offset, timestamp):
            continue
        segment = Segment.load(files, partition.directory, base_offset)
        try:
            found = _find_in(segment, timestamp)
        finally:
            segment.close()
        if found is not None:
            return found
    return None


def _is_older(files: Files, partition: PartitionFiles, base_offset: int, timestamp: int) -> bool:
    """Whether a segment is wholly older, by its time index (which may be behind in the last)."""
    path = partition.path(base_offset, Suffix.TIME_INDEX)
    entry: IndexEntry | None = last_entry(files, path, TimeIndex.ENTRY)
    return entry is not None and 0 <= entry.key < timestamp


def _find_in(segment: Segment, timestamp: int) -> Found | None:
    try:
        return _first(segment, segment.find_by_timestamp(timestamp, segment.base_offset), timestamp)
    except CorruptFile:
        everything = walk_batches(segment.file, 0, segment.size, base_offset=segment.base_offset)
        return _first(segment, everything, timestamp)


def _first(segment: Segment, batches: Iterator[ScannedBatch], timestamp: int) -> Found | None:
    for batch in batches:
        if batch.header.max_timestamp >= timestamp:
            for record in read_found(segment.path, batch):
                if record.timestamp >= timestamp:
                    return Found(segment.path, batch.position, batch.header, record)
    return None


def read_found(path: str, batch: ScannedBatch) -> list[Record]:
    """A sound batch's records; `DamagedSegment` if they do not decode."""
    try:
        return read_records(batch.data, 0, batch.header)
    except CorruptRecords as fault:
        reason = str(fault).partition(": ")[2]
        raise DamagedSegment(path, batch.position, reason) from fault
