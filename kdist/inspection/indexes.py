"""A segment's indexes: read them, check them against its batches during a walk, rebuild them.

An offset entry must point to the start of a batch that does not begin after the entry's offset, and
that offset must be some batch's last. A time entry must give the largest timestamp up to its
offset. Which batches get entries is up to the writer (Kafka: at most one per append, kdist: per
batch), so an index is not compared with a rebuilt one.

While a segment is active, Kafka keeps its indexes at full size: zeros at the end are no entries.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

from kdist.config.topic import TopicSettings
from kdist.errors import DiskFull
from kdist.inspection.place import PartitionFiles
from kdist.model import NO_TIMESTAMP, counted
from kdist.records.batch import BatchHeader
from kdist.runtime.files import File, Files
from kdist.storage.index import IndexEntry, OffsetIndex, TimeIndex
from kdist.storage.names import Suffix
from kdist.storage.scan import DamagedSegment, walk_headers
from kdist.storage.segment import Segment

_CHUNK_ENTRIES = 8192
_NO_POSITION = 1 << 62


class IndexContent(NamedTuple):
    """The decoded content of an index file."""

    entries: Iterator[IndexEntry]
    entry_count: int
    left_over_bytes: int
    """How many bytes follow the last whole entry."""


def read_index(files: Files, path: str, entry: struct.Struct) -> IndexContent | None:
    """The entries of an index file, read lazily; None if it is missing."""
    try:
        size = files.size(path)
    except FileNotFoundError:
        return None
    file = files.open_readonly(path)
    left_over = size % entry.size
    used = _used_size(file, size - left_over, entry.size)
    return IndexContent(_read_entries(file, used, entry), used // entry.size, left_over)


def last_entry(files: Files, path: str, entry: struct.Struct) -> IndexEntry | None:
    """The last entry before any zeros; None if the index is missing or empty."""
    if not files.exists(path):
        return None
    with contextlib.closing(files.open_readonly(path)) as file:
        size = file.size()
        used = _used_size(file, size - size % entry.size, entry.size)
        last = file.read(used - entry.size, entry.size) if used else b""
        return IndexEntry._make(entry.unpack(last)) if last else None


def _used_size(file: File, size: int, entry_size: int) -> int:
    step = _CHUNK_ENTRIES * entry_size
    while size:
        start = max(0, size - step)
        used = len(file.read(start, size - start).rstrip(b"\0"))
        if used:
            return start + -(-used // entry_size) * entry_size
        size = start
    return 0


def _read_entries(file: File, used: int, entry: struct.Struct) -> Iterator[IndexEntry]:
    step = _CHUNK_ENTRIES * entry.size
    with contextlib.closing(file):
        for start in range(0, used, step):
            data = file.read(start, min(step, used - start))
            whole = data[: len(data) // entry.size * entry.size]
            yield from map(IndexEntry._make, entry.iter_unpack(whole))


class IndexCheck:
    """The base of both checks: steps through the entries as batches pass; notes the first fault."""

    ENTRY: struct.Struct

    def __init__(self, files: Files, path: str, base_offset: int) -> None:
        self.path = path
        self.fault: str | None = None
        self.count = 0
        self._base = base_offset
        content = read_index(files, path, self.ENTRY)
        self.is_missing = content is None
        self._entries: Iterator[IndexEntry] = iter(())
        self._number = -1
        self._next: IndexEntry | None = None
        if content is not None:
            self._entries, self.count = content.entries, content.entry_count
            if content.left_over_bytes:
                self.fault = f"has {counted(content.left_over_bytes, 'byte')} after its last entry"
            self._advance()

    def _advance(self) -> None:
        previous, self._next = self._next, next(self._entries, None)
        self._number += 1
        entry = self._next
        if entry is None:
            return
        if entry.key < 0 or entry.value < 0:
            self._fail("is negative")
        elif previous is not None and (entry.key <= previous.key or entry.value < previous.value):
            self._fail("does not follow the one before")

    def skip_all(self) -> None:
        """Step through all entries, checking only their order."""
        while self._next is not None:
            self._advance()

    def _fail(self, reason: str) -> None:
        """Note the first fault, and check no further."""
        self.fault = self.fault or f"entry {self._number} {reason}"
        self._next = None
        self._entries = iter(())


class OffsetIndexCheck(IndexCheck):
    """`.index` against the batches: give `take` each in order, then call `finish`."""

    ENTRY = OffsetIndex.ENTRY

    def __init__(self, files: Files, path: str, base_offset: int) -> None:
        self._awaited = -1  # the last entry's offset, until a batch ends with it
        super().__init__(files, path, base_offset)

    @property
    def next_position(self) -> int:
        """Where the next entry points: batches before it need not be passed to `take`."""
        if self._awaited >= 0 or self._next is None:
            return -1 if self._awaited >= 0 else _NO_POSITION
        return self._next.value

    def take(self, position: int, header: BatchHeader) -> None:
        """Take the next sound batch."""
        self._pass_by(position)
        entry = self._next
        if entry is not None and entry.value == position:
            offset = self._base + entry.key
            if header.base_offset > offset:
                self._fail(f"points to offset {header.base_offset}, beyond its own, {offset}")
                return
            self._awaited = offset
            self._advance()
        if self._awaited >= 0 and header.last_offset >= self._awaited:
            if header.last_offset > self._awaited:
                self._number -= 1
                self._fail(f"has offset {self._awaited}, which is no batch's last")
            self._awaited = -1

    def _pass_by(self, position: int) -> None:
        if self._next is not None and self._next.value < position:
            self._fail(f"points to position {self._next.value}, inside a batch")

    def skip(self, end: int) -> None:
        """Skip the entries that point below `end`, where the log is damaged."""
        self._awaited = -1
        while self._next is not None and self._next.value < end:
            self._advance()

    def finish(self, size: int) -> None:
        """End the check: the log's file ends at `size`."""
        if self._awaited >= 0:
            self._number -= 1
            self._fail(f"has offset {self._awaited}, which is beyond the log's end")
        if self._next is not None:
            reason = "beyond the log's" if self._next.value >= size else "where no batch begins:"
            self._fail(f"points to position {self._next.value}, {reason} {size} bytes")


class TimeIndexCheck(IndexCheck):
    """`.timeindex` against the batches: give `take` each in order, then call `finish`."""

    ENTRY = TimeIndex.ENTRY

    def __init__(self, files: Files, path: str, base_offset: int) -> None:
        self.largest = NO_TIMESTAMP
        self.last_timestamp = NO_TIMESTAMP
        super().__init__(files, path, base_offset)

    def take(self, header: BatchHeader) -> None:
        """Take the next sound batch."""
        if header.max_timestamp > self.largest:
            self.largest = header.max_timestamp
        entry = self._next
        while entry is not None and self._base + entry.value <= header.last_offset:
            offset = self._base + entry.value
            if entry.key != self.largest and offset >= header.base_offset:
                self._fail(
                    f"says {entry.key} for offset {offset}, where the largest timestamp is"
                    f" {self.largest}"
                )
                return
            self.last_timestamp = entry.key
            self._advance()
            entry = self._next

    def finish(self) -> None:
        """End the check: all batches were taken."""
        if self._next is not None:
            offset = self._base + self._next.value
            self._fail(f"is for offset {offset}, which is beyond the log's end")


# --- rebuilding ---------------------------------------------------------------------------------
#
# The new indexes are built as temporary files and renamed over the old: after a power loss there
# are either the old or the new ones, never partial ones, which a start after a clean stop would
# trust.


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
