"""Cutting off a log's end: after a change of leader, or by `kdist log trim`.

A `Truncation` is planned on the owner's thread, cuts the files in `run`, which may block and runs
on another thread, and is taken in by `finish` on the owner's again. Until then only `run` touches
the segments concerned: appends are refused, and readers are told that there is nothing yet.

A power loss may come between any two steps, hence their order: first the checkpoint, lowered, then
the files; segments are removed from the end backwards, so that the rest has no hole.
"""

from __future__ import annotations

import logging

from kdist.errors import DiskFailed, DiskFull
from kdist.storage.deletion import discard_snapshots
from kdist.storage.index_trust import restart_indexes
from kdist.storage.log import Log
from kdist.storage.names import FileState
from kdist.storage.producer_loading import loaded_producers
from kdist.storage.scan import DamagedSegment
from kdist.storage.segment import Segment
from kdist.storage.steps import run_steps

logger = logging.getLogger(__name__)


class Truncation:
    """Drops the batch that holds an offset, and all after it. Owner: whoever truncates the log.

    The saved recovery point must not be above the log's when `run` begins: records appended
    afterwards will not be synced, whatever an old checkpoint said of these offsets.
    """

    def __init__(self, log: Log, offset: int, now_ms: int, *, lowers_start: bool = False) -> None:
        """No append may be under way. Lowers the log's recovery point.

        With `lowers_start` a log that starts behind `offset` then starts there, without records, or
        as near as its first segment allows.
        """
        assert not log.is_appending
        self._log = log
        self._offset = max(
            offset, log.segments[0].base_offset if lowers_start else log.start_offset
        )
        self._now_ms = now_ms
        self._number = number = log.segment_index(self._offset)
        self._segment = log.segments[number]
        self._dropped = log.segments[:number:-1]
        self._retired: list[str] = []  # new paths of the dropped segments' files
        self._replacement: Segment | None = None
        self._compacted_for_offset = log.compacted_for_offset
        log.begin_cut(number)

    def run(self) -> None:
        """Cut the files. Blocks.

        After `DiskFull`, and `DamagedSegment` before the cut, they are as they were. The producers
        are loaded first, since that may fail too.
        """
        log, segment = self._log, self._segment
        files, start_offset = log.context.files, min(log.start_offset, self._offset)
        found = segment.find_despite_index(self._offset)
        position, start = segment.size, self._offset
        if found is not None:  # else nothing in the segment is at or after the offset
            position, start = found[0], min(start, found[1].base_offset)
        self._end_offset = end_offset = max(start, start_offset)
        self._producers = run_steps(loaded_producers(log, end_offset, own=self._own))
        kept = {each.base_offset for each in log.segments[: self._number + 1]} | {end_offset}
        try:
            for each in self._dropped:
                self._retired += each.retire()
            discard_snapshots(files, log.directory, kept)
            # Otherwise a segment or snapshot of the records cut off could come back after a power
            # loss, among those appended from here on.
            files.sync_directory(log.directory)
            if start < start_offset:  # only the batch that contains the log start offset is left
                self._replacement = Segment.create(files, log.directory, start_offset, self._now_ms)
            elif position < segment.size:
                self._cut(position, start)
        except DiskFull:
            self._put_back()
            raise

    def _own(self, segment: Segment) -> Segment:
        """A segment that this thread may use: those before the cut are read by others."""
        if segment is self._segment:
            return segment
        return Segment.load(self._log.context.files, self._log.directory, segment.base_offset)

    def _cut(self, position: int, offset: int) -> None:
        """Cut the segment and its indexes at `position`, where the batch at `offset` begins."""
        segment, interval_bytes = self._segment, self._log.settings.index_interval_bytes
        segment.sync_targets(is_sealed=True)  # opens all files now, so that no open fails half-way
        segment.cut(position)
        try:
            walk = segment.walk_spans(restart_indexes(segment, offset), interval_bytes)
            for place, span, _ in walk:
                segment.note_span(place, span, interval_bytes)
        except DamagedSegment as damage:  # older damage, below the cut
            logger.error("%s: the rest of this segment cannot be read", damage)
            segment.size = position
        segment.prime_tail()

    def _put_back(self) -> None:
        """Undo the renames, from the lowest segment on, so that a kill leaves no hole."""
        files = self._log.context.files
        try:
            for path in reversed(self._retired):
                files.rename(path, path.removesuffix(FileState.DELETED))
        except DiskFull as error:
            reason = "a truncation finds no room to be completed or undone"
            raise DiskFailed(error.path, OSError(reason)) from error

    def finish(self) -> None:
        """Take in what `run` has done, on the owner's thread."""
        self._log.finish_cut(
            self._end_offset, self._producers, self._dropped, self._retired, self._replacement
        )

    def give_up(self) -> None:
        """`run` has put all files back, if it ran: the log is as it was, but for its recovery point
        and what counts as clean."""
        self._log.give_up_cut(self._compacted_for_offset)


def truncate(log: Log, offset: int, now_ms: int) -> None:
    """Truncate at once, where no loop waits. After an error but `DiskFailed` nothing is changed."""
    log.begin_truncation(lambda: None)
    try:
        truncation = Truncation(log, offset, now_ms)
        truncation.run()
        truncation.finish()
    finally:
        log.end_truncation()
