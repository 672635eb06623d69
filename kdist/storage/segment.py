"""A segment: one `.log` file and its two indexes, with look-ups, appends, cuts and rebuilds.

It holds batches from `base_offset` up to, not including, the next segment's. Only a log's last
segment, the active one, grows, until `seal`. Whatever concerns several segments is in `log.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from kdist.config.kinds import INT64_MAX
from kdist.errors import CorruptFile, DiskFull
from kdist.model import NO_TIMESTAMP
from kdist.records.batch import BatchHeader
from kdist.records.codec import BatchSpan
from kdist.runtime.files import File, Files
from kdist.storage.index import IndexEntry, OffsetIndex, TimeIndex, find_batch, walk_from
from kdist.storage.names import FileState, Suffix, segment_name
from kdist.storage.scan import (
    DamagedSegment,
    Piece,
    ScannedBatch,
    walk_batches,
    walk_headers,
    walk_spans,
)

FILE_BYTES_MAX = 2**31 - 1  # positions in the index are int32
_PLACES_MAX = 512  # 60 KB of memory; enough for 512 MiB read in fetches of 1 MiB


class Segment:
    """Owner: the log it is part of. `pin` keeps its files open for others."""

    __slots__ = (
        "_bytes_since_entry",
        "_directory",
        "_file",
        "_files",
        "_first_timestamp",
        "_is_retired",
        "_largest",
        "_pins",
        "_state",
        "base_offset",
        "created_ms",
        "generation",
        "modified_ms",
        "offset_index",
        "places",
        "preallocated",
        "size",
        "time_index",
        "written_back",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: int,
        size: int,
        created_ms: int,
        state: FileState = FileState.LIVE,
    ) -> None:
        """`size`: bytes of whole batches in the file. See `create`, `load` and `create_files`.

        `state` is that of its files' names, which are not the log's before `take_names`.
        """
        self._state = state
        self.base_offset = base_offset
        self.created_ms = self.modified_ms = created_ms
        self.size = size
        self.written_back = size
        self._files = files
        self._directory = directory
        self._file: File | None = None
        self._pins = 0
        self._is_retired = False
        self.preallocated = size
        # Changes when what was in the file may change: a range of it that is being sent must end.
        self.generation = 0
        self._bytes_since_entry = 0
        self._largest: tuple[int, int] | None = None
        self._first_timestamp: int | None = None
        # By recently looked-up offset: position and size of its batch.
        self.places: dict[int, tuple[int, int]] = {}
        self.offset_index = OffsetIndex(files, self._path(Suffix.INDEX))
        self.time_index = TimeIndex(files, self._path(Suffix.TIME_INDEX))

    @classmethod
    def create(
        cls,
        files: Files,
        directory: str,
        base_offset: int,
        now_ms: int,
        state: FileState = FileState.LIVE,
    ) -> Segment:
        """A new, empty segment. Its files are durable once the directory has been synced."""
        segment = cls(files, directory, base_offset, 0, now_ms, state)
        segment.create_files()
        return segment

    @classmethod
    def load(
        cls, files: Files, directory: str, base_offset: int, state: FileState = FileState.LIVE
    ) -> Segment:
        """An existing segment, with the indexes that exist; reads nothing yet."""
        path = f"{directory}/{segment_name(base_offset, Suffix.LOG, state)}"
        modified_ms = files.modified_ms(path)
        segment = cls(files, directory, base_offset, files.size(path), modified_ms, state)
        segment._load_indexes()
        return segment

    def reopened(self, files: Files) -> Segment:
        """The segment as it is now, with handles of its own, and without what the indexes have in
        memory only."""
        own = Segment(
            files, self._directory, self.base_offset, self.size, self.created_ms, self._state
        )
        own._load_indexes()
        return own

    def _load_indexes(self) -> None:
        self.offset_index = OffsetIndex.load(self._files, self.offset_index.path)
        self.time_index = TimeIndex.load(self._files, self.time_index.path)

    def create_files(self) -> None:
        """Create the empty files."""
        for index in (self.offset_index, self.time_index):
            index.create()
        self._file = self._files.create(self.path)  # last: a start removes indexes without a log

    def __repr__(self) -> str:
        return f"<Segment {self.path} of {self.size} bytes>"

    def _path(self, suffix: Suffix) -> str:
        return f"{self._directory}/{segment_name(self.base_offset, suffix, self._state)}"

    @property
    def path(self) -> str:
        return self._path(Suffix.LOG)

    @property
    def paths(self) -> list[str]:
        """The `.log` and the indexes."""
        return list(map(self._path, (Suffix.LOG, Suffix.INDEX, Suffix.TIME_INDEX)))

    @property
    def file(self) -> File:
        """The open `.log`. It may be closed again by `close_idle`, so ask each time, or `pin`."""
        if self._file is None:
            self._file = self._files.open(self.path)
        return self._file

    def preallocate(self, end: int) -> None:
        """Reserve disk space up to `end`."""
        start, self.preallocated = self.preallocated, end
        self.file.preallocate(start, end - start)

    def note(
        self, position: int, size: int, last_offset: int, max_timestamp: int, interval_bytes: int
    ) -> None:
        """Account for a batch that is now in the file, and index it if one is due.

        `interval_bytes` is `index.interval.bytes`. Called for every append: hence plain arguments.
        """
        largest = self._largest or self.largest_timestamp
        if max_timestamp > largest[0]:
            self._largest = largest = max_timestamp, last_offset
        if self._bytes_since_entry > interval_bytes:
            self.offset_index.append(last_offset - self.base_offset, position)
            if largest[0] != NO_TIMESTAMP:
                self.time_index.append(largest[0], largest[1] - self.base_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size
        if not position:
            self._first_timestamp = max_timestamp
        self.size = position + size

    def note_many(self, start: int, end: int, newest_ms: int, interval_bytes: int) -> bool:
        """`note` the batches from `start` to `end` at once; False if one needs an index entry."""
        since_entry = self._bytes_since_entry + end - start
        if not start or since_entry > interval_bytes or newest_ms > self.largest_timestamp[0]:
            return False
        self._bytes_since_entry, self.size = since_entry, end
        return True

    def note_span(self, position: int, span: BatchSpan, interval_bytes: int) -> None:
        """As `note`, for batches that `walk_spans` found in the file."""
        largest = self._largest or self.largest_timestamp
        if span.newest_ms > largest[0]:
            self._largest = span.newest_ms, span.newest_offset
        before = span.size - span.last_size
        self._bytes_since_entry += before
        last = position + before, span.last_size, span.last_offset
        self.note(*last, span.newest_ms, interval_bytes)

    @property
    def first_timestamp(self) -> int | None:
        """The largest timestamp of the first batch, ms; None while there is no batch."""
        if self._first_timestamp is None and self.size:
            self._first_timestamp = next(self.walk_headers())[1].max_timestamp
        return self._first_timestamp

    @property
    def index_bytes(self) -> int:
        """The size of the larger index, entries in memory included."""
        return max(self.offset_index.size(), self.time_index.size())

    def seal(self) -> None:
        """Complete the indexes, at a roll, at a clean stop or after a rebuild.

        If they do not fit the disk, the flush that follows raises that. The flush also frees spare
        disk space, after its sync: XFS writes a file out before it frees what is reserved beyond
        its end, which took 0.4 s and more for a full segment here.
        """
        timestamp, offset = self.largest_timestamp
        if timestamp != NO_TIMESTAMP:
            self.time_index.append(timestamp, offset - self.base_offset)
        self.offset_index.maybe_write()
        self.time_index.maybe_write()

    @property
    def has_spare_space(self) -> bool:
        """Whether disk space is reserved beyond the end."""
        return self.preallocated > self.size

    def trim(self) -> None:
        """Truncate the file to the segment's size, which frees reserved disk space."""
        self.file.truncate(self.size)
        self.preallocated = self.size

    @property
    def largest_timestamp(self) -> tuple[int, int]:
        """The largest timestamp in the segment, ms, and the last offset of the batch it is in.

        (NO_TIMESTAMP, base offset) if there is none. For a loaded segment it is the time index's
        last entry, which is complete once the segment was sealed or closed.
        """
        if self._largest is None:
            timestamp, place = self.time_index.last() or (NO_TIMESTAMP, 0)
            self._largest = timestamp, self.base_offset + place
        return self._largest

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Position and header of the first batch that ends at or after `offset`; None if none does.

        `CorruptFile` if the index misleads: `rebuild_indexes` and try again.
        """
        found = find_batch(self.file, self.size, self.base_offset, self.offset_index, offset)
        if found is not None:
            return found
        walk = self.walk_near(offset)
        return next((place for place in walk if place[1].last_offset >= offset), None)

    def find_despite_index(self, offset: int) -> tuple[int, BatchHeader] | None:
        """As `find`; where the index misleads, by the headers alone. It changes nothing."""
        try:
            return self.find(offset)
        except CorruptFile:
            walk = self.walk_headers()
            return next((place for place in walk if place[1].last_offset >= offset), None)

    def note_place(self, offset: int, position: int, size: int) -> None:
        """Remember the result of `find` for the next reader of this offset."""
        if len(self.places) >= _PLACES_MAX:
            self.places.clear()
        self.places[offset] = position, size

    def find_by_timestamp(self, timestamp: int, start_offset: int) -> Iterator[ScannedBatch]:
        """The batches, in order, that may hold a record of `timestamp` or later.

        Without those that end below `start_offset`. Raises as `find` does, and `DamagedSegment` at
        a batch that fails its checks.
        """
        for position, header in self.walk_near(self.offset_before(timestamp, start_offset)):
            if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
                yield self.read_batch(position, header.size)

    def offset_before(self, timestamp: int, start_offset: int) -> int:
        """An offset before which all batches are older, or end below `start_offset`, by the time
        index. Raises as `check_time`."""
        entry = self.time_index.floor(timestamp)
        if entry is None:
            return start_offset
        self.check_time(entry)
        return max(self.base_offset + entry.value, start_offset)

    def check_time(self, entry: IndexEntry) -> None:
        """Raise `CorruptFile` if a time index entry does not match the batch that it points to."""
        found = self.find(self.base_offset + entry.value)
        if found is None or found[1].max_timestamp != entry.key:
            reason = f"its entry for {entry.key} points to a batch of another time"
            raise CorruptFile(self.time_index.path, None, reason)

    def read_batch(self, position: int, size: int) -> ScannedBatch:
        """The batch at `position`, of up to `size` bytes. `DamagedSegment` if it fails a check."""
        end = position + size
        return next(walk_batches(self.file, position, end, base_offset=self.base_offset))

    def walk_headers(self, start: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from position `start`, where one must begin."""
        return walk_headers(self.file, start, self.size, base_offset=self.base_offset)

    def walk_spans(
        self,
        start: int,
        interval_bytes: int = INT64_MAX,
        trusted_offset: int = INT64_MAX,
        end: int | None = None,
    ) -> Iterator[Piece]:
        """As `walk_headers`, many batches at a time; see `scan.walk_spans`.

        With `interval_bytes` (`index.interval.bytes`), spans are cut so that only the last
        batch of each may need an index entry; pass each to `note_span` before asking for more.
        """
        return walk_spans(
            self.file,
            start,
            self.size if end is None else end,
            base_offset=self.base_offset,
            trusted_offset=trusted_offset,
            room=lambda: interval_bytes - self._bytes_since_entry,
        )

    def read_end_offset(self) -> int:
        """The end offset of the last batch, from the headers after the last index entry.

        Raises as `find`, and `DamagedSegment` if the file does not end with a whole batch.
        """
        end_offset = self.base_offset
        for _, header in self._walk_from(self.offset_index.last()):
            end_offset = header.next_offset
        return end_offset

    def walk_near(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """`walk_headers` from the batch that holds `offset`, or one a little before."""
        return self._walk_from(self.offset_index.floor(offset - self.base_offset))

    def _walk_from(self, entry: IndexEntry | None) -> Iterator[tuple[int, BatchHeader]]:
        return walk_from(self.file, self.size, self.base_offset, entry, self.offset_index.path)

    def rebuild_indexes(self, index_interval_bytes: int) -> None:
        """Rebuild both indexes from the headers in the log.

        Raises `DamagedSegment` at a damaged header; the indexes then reach up to there.
        """
        indexes, end, damage = (self.offset_index, self.time_index), self.size, None
        for index in indexes:
            index.begin_rebuild()
        self.forget_noted()
        try:
            for position, span, _ in self.walk_spans(0, index_interval_bytes):
                self.note_span(position, span, index_interval_bytes)
        except DamagedSegment as found:
            damage = found
        self.size = end
        self.seal()
        for index in indexes:
            index.end_rebuild()
        if damage is not None:
            raise damage

    def index_fault(self) -> str | None:
        """Why an index is unusable, judged by its last entries; None if it seems sound.

        Damage that this misses is detected by look-ups.
        """
        offsets, times = self.offset_index, self.time_index
        if not self.size:
            return f"{offsets.path} is of an empty log" if self.index_bytes else None
        fault = offsets.fault(self.size - 1) or times.fault(FILE_BYTES_MAX)
        return fault or self._largest_timestamp_fault()

    def _largest_timestamp_fault(self) -> str | None:
        """Check the last time entry against the log: retention and searches rely on it alone."""
        timestamp, offset = self.largest_timestamp  # it is remembered for those
        try:
            if timestamp != NO_TIMESTAMP:
                self.check_time(IndexEntry(timestamp, offset - self.base_offset))
            elif self.first_timestamp != NO_TIMESTAMP:
                return f"{self.time_index.path} is empty"
        except (CorruptFile, DamagedSegment) as fault:
            return str(fault)
        return None

    def restart_indexes(self, offset: int) -> int:
        """Keep the indexes' entries below `offset` as far as they can be trusted.

        Returns the position that they reach, 0 if none is kept; from there the caller walks the
        batches and notes them. A power loss may have taken the end of one index only, so entries
        are kept up to where both have one.
        """
        offsets, times = self.offset_index, self.time_index
        times_sorted = times.sorted_count()
        reach = times[times_sorted - 1].value if times_sorted else -1
        number = offsets.floor_number(min(offset - self.base_offset, reach))
        kept, kept_times, position = 0, 0, 0
        if 0 <= number < offsets.sorted_count():
            entry = offsets[number]
            if self._is_batch_end(entry):
                kept, position = number + 1, entry.value
                kept_times = min(times_sorted, times.count_up_to(entry.key))
        offsets.keep(kept)
        times.keep(kept_times)
        self.forget_noted()
        return position

    def _is_batch_end(self, entry: IndexEntry) -> bool:
        start, end, base_offset = entry.value, self.size, self.base_offset
        if not 0 <= start < end:
            return False
        try:
            batch = self.read_batch(start, end - start)
        except DamagedSegment:
            return False
        return batch.header.last_offset == base_offset + entry.key

    def forget_noted(self) -> None:
        """Forget what was noted last: the indexes were cut, and no longer contain it."""
        self._largest, self._bytes_since_entry = None, 0

    def cut(self, size: int) -> None:
        """Truncate the file to `size`, a batch's start, durably. The caller cuts the indexes."""
        self.file.truncate(size)
        self.file.sync()
        self.places.clear()
        self.size = self.preallocated = size
        self.written_back = min(self.written_back, size)
        if not size:
            self._first_timestamp = None

    def prime_tail(self) -> None:
        """Read now what `note` will need of the indexes: it is called after a batch is written.

        If it could not open them then, for lack of descriptors, a batch would be in the file but
        not in the log, and the next one would follow it with the same offset.
        """
        assert self.largest_timestamp  # reads it, and remembers it
        self.offset_index.prime_tail()
        self.time_index.prime_tail()

    def write_indexes(self) -> None:
        """Write all entries of both indexes to their files, as a sealed segment's must be."""
        self.offset_index.write_all()
        self.time_index.write_all()

    def sync_targets(self, *, is_sealed: bool) -> list[File]:
        """The files to sync so that all noted batches survive a power loss.

        Including a sealed segment's indexes, since recovery does not rebuild them once the recovery
        point is past it; the active segment's are rebuilt from the recovery point on.
        """
        indexes = [self.offset_index.file, self.time_index.file] if is_sealed else []
        return [self.file, *indexes]

    def pin(self) -> None:
        """Keep the files open until `unpin`: they are in use."""
        self._pins += 1

    def unpin(self) -> None:
        self._pins -= 1
        assert self._pins >= 0
        if self._is_retired and not self._pins:
            self._close()

    def close_idle(self) -> None:
        """Close the files until they are needed again, unless the segment is pinned."""
        if not self._pins:
            self._close()

    def close(self) -> None:
        """Close the files for good, once the segment is no longer pinned."""
        self._is_retired = True
        # Else a late `_close` would write them, when these paths may be another log's.
        self.offset_index.forget_pending()
        self.time_index.forget_pending()
        if not self._pins:
            self._close()

    def take_names(self, state: FileState) -> None:
        """Its files, which are open, have been renamed to those of this state."""
        assert self._pins
        self._state = state
        self.offset_index.move_to(self._path(Suffix.INDEX))
        self.time_index.move_to(self._path(Suffix.TIME_INDEX))

    def retire(self) -> list[str]:
        """Rename the files to `.deleted` so that no start opens them; return the new paths.

        The caller then closes it. `DiskFull` if the `.log` cannot be renamed; an index that cannot
        is left to the next start.
        """
        retired: list[str] = []
        paths = map(self._path, (Suffix.LOG, Suffix.INDEX, Suffix.TIME_INDEX, Suffix.TXN_INDEX))
        for path in filter(self._files.exists, paths):
            try:
                self._files.rename(path, f"{path}{FileState.DELETED}")
                retired.append(f"{path}{FileState.DELETED}")
            except DiskFull:
                if not retired:
                    raise
        return retired

    def _close(self) -> None:
        for handle in (self._file, self.offset_index, self.time_index):
            if handle is not None:
                handle.close()
        self._file = None
        self.places.clear()
