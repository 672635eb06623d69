"""What a partition holds between two offsets, segment by segment, damage included."""

from __future__ import annotations

from collections.abc import Iterator

from kdist.inspection.inspection import PartitionFiles
from kdist.inspection.lookup import find_batch, segment_number
from kdist.inspection.scan import Damage, OldMessage, Scanned, survey
from kdist.runtime.files import Files
from kdist.storage.scan import DamagedSegment
from kdist.storage.segment import Segment


def bases_between(partition: PartitionFiles, start: int, end: int | None) -> Iterator[int]:
    """The base offsets of the segments that may hold offsets from `start` up to `end`."""
    for base_offset in partition.bases[segment_number(partition, start) :]:
        if end is None or base_offset < end:
            yield base_offset


def scan_segment(
    files: Files, partition: PartitionFiles, base_offset: int, start: int, end: int | None
) -> Iterator[Scanned]:
    """What one segment holds from offset `start` up to `end`, by whole batches."""
    segment = Segment.load(files, partition.directory, base_offset)
    try:
        position = _start_position(segment, start)
        for item in survey(segment.file, position, segment.size, base_offset):
            if end is not None and _first_offset(item) >= end:
                return
            if _is_reached(item, start):
                yield item
    finally:
        segment.close()


def _start_position(segment: Segment, start: int) -> int:
    if start <= segment.base_offset:
        return 0
    try:
        found = find_batch(segment, start)
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
