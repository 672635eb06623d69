"""Reading a log that no broker has opened: whole segments, ranges of offsets, single records.

`storage.scan` stops at the first fault, as recovery must. A tool has to tell how far the damage
reaches and what follows it, so the walk here searches for the next batch whose header and CRC are
good. Look-ups use indexes that are sound; a corrupt one costs a walk from the segment's start.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from kdist.errors import CorruptFile, CorruptRecords
from kdist.inspection.indexes import last_entry
from kdist.inspection.place import PartitionFiles
from kdist.records.batch import (
    CHECKED_POSITION,
    HEADER_SIZE,
    LENGTH_PREFIX_SIZE,
    BatchHeader,
    header_fault,
    read_header,
)
from kdist.records.build import read_records
from kdist.records.message_set import MAGIC_MAX, Message, iter_messages
from kdist.records.record import Record
from kdist.runtime.files import File, Files
from kdist.storage.index import TimeIndex
from kdist.storage.names import Suffix
from kdist.storage.scan import DamagedSegment, ScannedBatch, walk_batches
from kdist.storage.segment import Segment
from kdist.wire.crc32c import crc32c

_READ_BYTES = 1 << 20
_OLD_MESSAGE_BYTES_MAX = 1 << 28
_OLD_MESSAGE_BYTES_MIN = 26


class Damage(NamedTuple):
    """Bytes that are not a sound batch, from position `start` to `end`.

    An empty range: the batch there is sound, but its offset does not follow.
    """

    start: int
    end: int
    reason: str
    header: BatchHeader | None
    """What is in the header's place, if its fields make sense."""
    is_torn: bool
    """The file ends inside this batch, as after a crash or during an append."""


class OldMessage(NamedTuple):
    """A message of magic 0 or 1, or a compressed wrapper of several, whose CRC is good."""

    position: int
    size: int
    message: Message


Scanned = ScannedBatch | OldMessage | Damage


def survey(file: File, start: int, end: int, offset_min: int) -> Iterator[Scanned]:
    """Everything in a segment's file from `start`, where a batch must begin, to `end`.

    No base offset may be below `offset_min`, the segment's. Memory: one batch, but at least 1 MiB.
    """
    position = start
    while position < end:
        try:
            for batch in walk_batches(file, position, end, base_offset=offset_min):
                yield batch
                position, offset_min = batch.position + batch.header.size, batch.header.next_offset
        except DamagedSegment as fault:
            found = _explain(file, fault, end, offset_min)
            yield found
            if isinstance(found, OldMessage):
                position, offset_min = found.position + found.size, found.message.offset + 1
            else:
                position = found.end
                if found.end == found.start and found.header is not None:
                    offset_min = found.header.base_offset


def _explain(file: File, fault: DamagedSegment, end: int, offset_min: int) -> OldMessage | Damage:
    position = fault.position
    head = file.read(position, min(HEADER_SIZE, end - position))
    header = read_header(head) if len(head) == HEADER_SIZE else None
    old = _read_old_message(file, position, end)
    if old is not None:
        return old
    sound = header if header and header_fault(header, end - position) is None else None
    if sound and sound.base_offset < offset_min and _is_crc_good(file, position, sound):
        return Damage(position, position, fault.reason, sound, is_torn=False)
    following = _find_next(file, position, end, sound, offset_min)
    is_torn = following == end and _reaches_end(file, position, end, header)
    return Damage(position, following, fault.reason, sound, is_torn)


def _read_old_message(file: File, position: int, end: int) -> OldMessage | None:
    head = file.read(position, min(_OLD_MESSAGE_BYTES_MIN, end - position))
    if len(head) < _OLD_MESSAGE_BYTES_MIN or head[16] > MAGIC_MAX:
        return None
    size = LENGTH_PREFIX_SIZE + int.from_bytes(head[8:12], "big", signed=True)
    if not _OLD_MESSAGE_BYTES_MIN <= size <= min(end - position, _OLD_MESSAGE_BYTES_MAX):
        return None
    try:
        (message,) = iter_messages(file.read(position, size))
    except CorruptRecords:
        return None
    return OldMessage(position, size, message)


def _reaches_end(file: File, position: int, end: int, header: BatchHeader | None) -> bool:
    """Whether `position` seems to hold the beginning of a batch that the file's end cuts off."""
    if header is None or (header.magic == 2 and header.size > end - position):
        return True
    return _is_zero(file, position, end)  # preallocated and not yet written


def _is_zero(file: File, position: int, end: int) -> bool:
    for start in range(position, end, _READ_BYTES):
        data = file.read(start, min(_READ_BYTES, end - start))
        if data.count(0) != len(data):
            return False
    return True


# --- the next sound batch -----------------------------------------------------------------------


def _find_next(
    file: File, position: int, end: int, header: BatchHeader | None, offset_min: int
) -> int:
    """The position of the first sound batch after the damage at `position`; `end` if none."""
    if header is not None:
        following = position + header.size
        if following == end or _is_batch(file, following, end, offset_min):
            return following
    # The 32 high bits of the next offset, a length that is not negative, the magic, and two fields
    # whose first byte is 0 in any real batch: random bytes match one time in 2**57.
    pattern = re.compile(
        b"(?s)(?=" + re.escape((offset_min >> 32).to_bytes(4, "big")) + rb"....[\x00-\x7f]"
        rb".{7}\x02.{4}\x00.\x00)"
    )
    for start in range(position + 1, end, _READ_BYTES):
        data = file.read(start, min(_READ_BYTES + HEADER_SIZE, end - start))
        for match in pattern.finditer(data):
            if _is_batch(file, start + match.start(), end, offset_min):
                return start + match.start()
    return end


def _is_batch(file: File, position: int, end: int, offset_min: int) -> bool:
    head = file.read(position, min(HEADER_SIZE, end - position))
    if len(head) < HEADER_SIZE:
        return False
    header = read_header(head)
    if header_fault(header, end - position) or header.base_offset < offset_min:
        return False
    return _is_crc_good(file, position, header)


def _is_crc_good(file: File, position: int, header: BatchHeader) -> bool:
    end, value = position + header.size, 0
    for start in range(position + CHECKED_POSITION, end, _READ_BYTES):
        value = crc32c(file.read(start, min(_READ_BYTES, end - start)), value)
    return value == header.crc


# --- a range of offsets -------------------------------------------------------------------------


def _opened(
    files: Files, partition: PartitionFiles, base_offset: int
) -> contextlib.closing[Segment]:
    return contextlib.closing(Segment.load(files, partition.directory, base_offset))


def bases_between(partition: PartitionFiles, start: int, end: int | None) -> Iterator[int]:
    """The base offsets of the segments that may hold offsets from `start` up to `end`."""
    for base_offset in partition.bases[segment_number(partition, start) :]:
        if end is None or base_offset < end:
            yield base_offset


def scan_segment(
    files: Files, partition: PartitionFiles, base_offset: int, start: int, end: int | None
) -> Iterator[Scanned]:
    """What one segment holds from offset `start` up to `end`, by whole batches."""
    with _opened(files, partition, base_offset) as segment:
        position = _start_position(segment, start)
        for item in survey(segment.file, position, segment.size, base_offset):
            if end is not None and _first_offset(item) >= end:
                return
            if _is_reached(item, start):
                yield item


def _start_position(segment: Segment, start: int) -> int:
    if start <= segment.base_offset:
        return 0
    try:
        found = segment.find_despite_index(start)
    except DamagedSegment:
        return 0  # damage lies before, or nothing is at `start`: the walk shows which
    return segment.size if found is None else found[0]


def _first_offset(item: Scanned) -> int:
    if isinstance(item, OldMessage):
        return item.message.offset
    return -1 if item.header is None else item.header.base_offset


def _is_reached(item: Scanned, start: int) -> bool:
    if isinstance(item, Damage):
        return True
    if isinstance(item, OldMessage):
        return item.message.offset >= start
    return item.header.last_offset >= start


# --- single records -----------------------------------------------------------------------------


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
        with _opened(files, partition, base_offset) as segment:
            for batch in _batches_from(segment, offset):
                for record in read_found(segment.path, batch):
                    if record.offset >= offset:
                        return Found(segment.path, batch.position, batch.header, record)
    return None


def _batches_from(segment: Segment, offset: int) -> Iterator[ScannedBatch]:
    found = segment.find_despite_index(offset)
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
        with _opened(files, partition, base_offset) as segment:
            found = _find_in(segment, timestamp)
        if found is not None:
            return found
    return None


def _is_older(files: Files, partition: PartitionFiles, base_offset: int, timestamp: int) -> bool:
    """Whether a segment is wholly older, by its time index (which may be behind in the last)."""
    path = partition.path(base_offset, Suffix.TIME_INDEX)
    entry = last_entry(files, path, TimeIndex.ENTRY)
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
