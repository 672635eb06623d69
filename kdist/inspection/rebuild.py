"""Rebuilding a segment's indexes in a log directory that no broker has open.

The new ones are built as temporary files and renamed over the old: after a power loss there are
either the old or the new ones, never partial ones, which a start after a clean stop would trust.
"""

from __future__ import annotations

from typing import NamedTuple

from kdist.config.topic import TopicSettings
from kdist.errors import DiskFull
from kdist.inspection.index import IndexCheck, OffsetIndexCheck, TimeIndexCheck
from kdist.inspection.inspection import PartitionFiles
from kdist.runtime.files import Files
from kdist.storage.index import OffsetIndex, TimeIndex
from kdist.storage.names import Suffix
from kdist.storage.scan import DamagedSegment, walk_headers
from kdist.storage.segment import Segment


class Rebuilt(NamedTuple):
    """One index that was rebuilt, or could not be."""

    path: str
    entries_before: int
    entries: int
    fault_before: str | None
    """What was wrong with the old one."""
    failure: str | None = None
    """Where and why the log itself is damaged, if it is; the old index is then kept."""


def rebuild_segment(files: Files, partition: PartitionFiles, base_offset: int) -> list[Rebuilt]:
    """Rebuild both indexes of one segment. The caller holds the log directory's lock.

    After `DiskFull` the old ones are unchanged.
    """
    offset_check = OffsetIndexCheck(files, partition.path(base_offset, Suffix.INDEX), base_offset)
    time_check = TimeIndexCheck(files, partition.path(base_offset, Suffix.TIME_INDEX), base_offset)
    checks = (offset_check, time_check)
    segment = Segment.load(files, partition.directory, base_offset)
    try:
        for check in checks:
            _remove_if_there(files, f"{check.path}.tmp")
        segment.offset_index = OffsetIndex(files, f"{offset_check.path}.tmp")
        segment.time_index = TimeIndex(files, f"{time_check.path}.tmp")
        _note_all(segment, offset_check, time_check)
        offset_check.finish(segment.size)
        time_check.finish()
        segment.seal()
        segment.write_indexes()
        counts = [len(segment.offset_index), len(segment.time_index)]
        for index in (segment.offset_index, segment.time_index):
            index.file.sync()
    except DamagedSegment as damage:
        _give_up(files, segment)
        return [
            _outcome(check, check.count, f"damaged at position {damage.position}: {damage.reason}")
            for check in checks
        ]
    except DiskFull:
        _give_up(files, segment)
        raise
    finally:
        segment.close()
    for check in checks:
        files.rename(f"{check.path}.tmp", check.path)
    files.sync_directory(partition.directory)
    return [_outcome(check, count) for check, count in zip(checks, counts, strict=True)]


def _give_up(files: Files, segment: Segment) -> None:
    """Remove what there is of the new indexes."""
    for index in (segment.offset_index, segment.time_index):
        index.forget_pending()
        _remove_if_there(files, index.path)


def _remove_if_there(files: Files, path: str) -> None:
    if files.exists(path):
        files.remove(path)


def _note_all(segment: Segment, offsets: OffsetIndexCheck, times: TimeIndexCheck) -> None:
    # The topic's own setting is not known here; look-ups work with any interval.
    interval_bytes = TopicSettings().index_interval_bytes
    end = segment.size
    segment.size = 0
    for position, header in walk_headers(segment.file, 0, end, base_offset=segment.base_offset):
        last_offset, newest_ms = header.last_offset, header.max_timestamp
        segment.note(position, header.size, last_offset, newest_ms, interval_bytes)
        if position >= offsets.next_position:
            offsets.take(position, header)
        times.take(header)


def _outcome(check: IndexCheck, entries: int, failure: str | None = None) -> Rebuilt:
    fault = "was missing" if check.is_missing else check.fault
    return Rebuilt(check.path, check.count, entries, fault, failure)
