"""Compacting partitions that no broker has open, or telling what their broker would remove.

As the broker's cleaner does it (`storage/cleaning`), up to what the checkpoints say is committed
and flushed. Tombstones stay: whether all replicas have them is known to a running broker only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kdist.config.topic import TopicSettings
from kdist.errors import CorruptRecords, DiskFull, UserError
from kdist.inspection.place import PartitionFiles, Saved
from kdist.model import TopicPartition
from kdist.records.cleaning import SLOT_BYTES
from kdist.runtime.clock import Clock
from kdist.runtime.files import Files
from kdist.storage import names
from kdist.storage.checkpoints import load_offsets, save_offsets
from kdist.storage.cleaning.pass_runner import PassRunner, find_aborted
from kdist.storage.cleaning.requests import (
    Fault,
    MapKeys,
    NoteProducers,
    Report,
    Request,
    Rewrite,
    Source,
)
from kdist.storage.cleaning.selection import ClosedSegment, closed_segments, group_segments
from kdist.storage.segment import Segment
from kdist.storage.swapping import begin_swap, put_in_place

_FOREVER = 1 << 62  # a rate, and a horizon


class Options(NamedTuple):
    """What the topic's settings would say."""

    segment_bytes: int
    map_bytes: int
    secret: str  # of the map's hash: 16 bytes, in hexadecimal


class Outcome(NamedTuple):
    """What a pass removes, or would, from the closed segments of a partition."""

    partition: TopicPartition
    first_dirty_offset: int
    end_offset: int
    """Up to where it is clean then; `first_dirty_offset` if there is nothing to clean."""
    records: int
    removed_records: int
    bytes: int
    removed_bytes: int


class Cleaning:
    """A pass over one partition. With `files` read-only, `plan` alone."""

    def __init__(
        self, files: Files, clock: Clock, partition: PartitionFiles, saved: Saved, options: Options
    ) -> None:
        self._files = files
        self._clock = clock
        self._options = options
        self._directory = partition.directory
        if partition.partition is None:
            raise UserError(f"{partition.directory} does not say which partition it is")
        self.partition = partition.partition
        self._segments = [
            Segment.load(files, partition.directory, base) for base in partition.bases
        ]
        start = saved.offset(names.LOG_START_OFFSETS, self.partition) or 0
        clean = saved.offset(names.CLEANER_OFFSETS, self.partition) or 0
        first = partition.bases[0] if partition.bases else 0
        self._first_dirty = max(start, clean, first)
        self._limit = min(
            saved.offset(names.HIGH_WATERMARKS, self.partition) or 0,
            saved.offset(names.RECOVERY_POINTS, self.partition) or 0,
        )
        self._runner = PassRunner(files, clock, lambda _ms: None)

    def plan(self) -> Outcome:
        """What would go; reads the log, and changes nothing."""
        return self._run(writes=False)

    def carry_out(self, log_directory: str) -> Outcome:
        """Compact it. A kill or a power loss at any step leaves what a start completes."""
        outcome = self._run(writes=True)
        if outcome.end_offset > outcome.first_dirty_offset:
            path = f"{log_directory}/{names.CLEANER_OFFSETS}"
            offsets = load_offsets(self._files, path) | {self.partition: outcome.end_offset}
            save_offsets(self._files, path, offsets)
        return outcome

    def _run(self, *, writes: bool) -> Outcome:
        closed = self._closed()
        end = max((each.end_offset for each in closed), default=self._first_dirty)
        if end <= self._first_dirty:
            return Outcome(self.partition, self._first_dirty, self._first_dirty, 0, 0, 0, 0)
        sources = tuple(Source(each.base_offset, each.size) for each in self._segments)
        slots = min(self._options.map_bytes // SLOT_BYTES, 2 * (end - self._first_dirty) + 2)
        mapped_end = self._ask(
            MapKeys(
                directory=self._directory,
                sources=tuple(each for each in sources if each.base_offset >= self._dirty_base()),
                first_dirty_offset=self._first_dirty,
                end_offset=end,
                slot_count=slots,
                secret=self._options.secret,
                bytes_per_second=_FOREVER,
            )
        ).end_offset
        settings = TopicSettings(segment_bytes=self._options.segment_bytes)
        cleaned = (each for each in closed if each.segment.base_offset < mapped_end)
        groups = group_segments(cleaned, settings)
        self._ask(NoteProducers(producers=self._last_batches(), unmarked=()))
        reports = [self._rewrite(group, writes=writes) for group in groups]
        before = sum(segment.size for group in groups for segment, _ in group)
        seen = sum(each.seen_records for each in reports)
        return Outcome(
            partition=self.partition,
            first_dirty_offset=self._first_dirty,
            end_offset=mapped_end,
            records=seen,
            removed_records=seen - sum(each.kept_records for each in reports),
            bytes=before,
            removed_bytes=max(before - sum(each.size for each in reports), 0),
        )

    def _dirty_base(self) -> int:
        """Where the segment that holds the first dirty offset begins."""
        bases = [each.base_offset for each in self._segments]
        return max((base for base in bases if base <= self._first_dirty), default=0)

    def _closed(self) -> list[ClosedSegment]:
        """The closed segments that may be cleaned."""
        _, open_starts = find_aborted(self._segments)
        limit = min([self._limit, *open_starts.values()])
        return [each for each in closed_segments(self._segments) if each.end_offset <= limit]

    def _rewrite(self, group: Sequence[ClosedSegment], *, writes: bool) -> Report:
        old = [each.segment for each in group]
        request = Rewrite(
            sources=tuple(Source(each.base_offset, each.size) for each in old),
            modified_ms=old[-1].modified_ms,
            index_interval_bytes=TopicSettings().index_interval_bytes,
            now_ms=self._clock.now_ms(),
            delete_retention_ms=TopicSettings().delete_retention_ms,
            expires=False,
        )
        report = self._ask(request, writes=writes)
        if writes and report.is_changed:
            self._swap(old)
        return report

    def _last_batches(self) -> tuple[tuple[int, int], ...]:
        """Each producer's last batch: the newest of the whole log."""
        last: dict[int, int] = {}
        for segment in self._segments:
            for _, header in segment.walk_headers():
                if header.producer_id >= 0 and not header.is_control:
                    last[header.producer_id] = header.last_offset
        return tuple(last.items())

    def _swap(self, old: Sequence[Segment]) -> None:
        files, base = self._files, old[0].base_offset
        begin_swap(files, self._directory, base)
        retired: list[str] = []
        put_in_place(files, self._directory, old, base, retired)
        for path in retired:
            files.remove(path)

    def _ask(self, request: Request, *, writes: bool = False) -> Report:
        report = self._runner.answer(request, writes=writes)
        if report.fault == Fault.FULL:
            raise DiskFull(self._directory)
        if report.fault:
            raise CorruptRecords(f"{self.partition} cannot be cleaned: {report.reason}")
        return report
