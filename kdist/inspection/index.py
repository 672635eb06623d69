"""Checking a segment's indexes against its batches during a walk.

An offset entry must point to the start of a batch that does not begin after the entry's offset, and
that offset must be some batch's last. A time entry must give the largest timestamp up to its
offset. Which batches get entries is up to the writer (Kafka: at most one per append, kdist: per
batch), so an index is not compared with a rebuilt one.

While a segment is active, Kafka keeps its indexes at full size: zeros at the end are no entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from kdist.model import NO_TIMESTAMP
from kdist.records.batch import BatchHeader
from kdist.runtime.files import File, Files
from kdist.storage.index import IndexEntry, OffsetIndex, TimeIndex

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
    file = files.open_readonly(path)
    try:
        size = file.size()
        used = _used_size(file, size - size % entry.size, entry.size)
        return (
            IndexEntry._make(entry.unpack(file.read(used - entry.size, entry.size)))
            if used
            else None
        )
    finally:
        file.close()


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
    try:
        for start in range(0, used, step):
            data = file.read(start, min(step, used - start))
            yield from map(
                IndexEntry._make, entry.iter_unpack(data[: len(data) // entry.size * entry.size])
            )
    finally:
        file.close()


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
                self.fault = f"{content.left_over_bytes} bytes are left after its last entry"
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
