"""How much of a segment's indexes can be trusted, after a crash or a truncation."""

from __future__ import annotations

from kdist.model import NO_TIMESTAMP
from kdist.storage.faults import CorruptFile
from kdist.storage.index import IndexEntry
from kdist.storage.scan import DamagedSegment, walk_batches
from kdist.storage.segment import FILE_BYTES_MAX, Segment


def index_fault(segment: Segment) -> str | None:
    """Why an index is unusable, judged by its last entries; None if it seems sound.

    Damage that this misses is detected by look-ups.
    """
    offsets, times = segment.offset_index, segment.time_index
    if not segment.size:
        return f"{offsets.path} is of an empty log" if segment.index_bytes else None
    fault = offsets.fault(segment.size - 1) or times.fault(FILE_BYTES_MAX)
    return fault or _largest_timestamp_fault(segment)


def _largest_timestamp_fault(segment: Segment) -> str | None:
    """Check the last time entry against the log, since retention and searches rely on it alone."""
    timestamp, offset = segment.largest_timestamp  # the segment remembers it for those
    try:
        if timestamp != NO_TIMESTAMP:
            segment.check_time(IndexEntry(timestamp, offset - segment.base_offset))
        elif segment.first_timestamp != NO_TIMESTAMP:
            return f"{segment.time_index.path} is empty"
    except (CorruptFile, DamagedSegment) as fault:
        return str(fault)
    return None


def restart_indexes(segment: Segment, offset: int) -> int:
    """Keep the indexes' entries below `offset` as far as they can be trusted.

    Returns the position that they reach, 0 if none is kept; from there the caller walks the batches
    and notes them. A power loss may have taken the end of one index only, so entries are kept up to
    where both have one.
    """
    offsets, times = segment.offset_index, segment.time_index
    times_sorted = times.sorted_count()
    reach = times[times_sorted - 1].value if times_sorted else -1
    number = offsets.floor_number(min(offset - segment.base_offset, reach))
    kept, kept_times, position = 0, 0, 0
    if 0 <= number < offsets.sorted_count():
        entry = offsets[number]
        if _is_batch_end(segment, entry):
            kept, position = number + 1, entry.value
            kept_times = min(times_sorted, times.count_up_to(entry.key))
    offsets.keep(kept)
    times.keep(kept_times)
    segment.forget_noted()
    return position


def _is_batch_end(segment: Segment, entry: IndexEntry) -> bool:
    start, end, base_offset = entry.value, segment.size, segment.base_offset
    if not 0 <= start < end:
        return False
    try:
        batch = next(walk_batches(segment.file, start, end, base_offset=base_offset))
    except DamagedSegment:
        return False
    return batch.header.last_offset == base_offset + entry.key
