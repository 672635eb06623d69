"""Recovery after a crash: scan a log from its recovery point, and cut it at the first damage.

`runtime/files.py` describes what a power loss may leave beyond the recovery point;
docs/formats/recovery.md explains what is kept, and why nothing that was flushed can be lost.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from kdist.storage.index_trust import index_fault, restart_indexes
from kdist.storage.log import Log
from kdist.storage.scan import DamagedSegment
from kdist.storage.segment import Segment
from kdist.storage.steps import Pace, Steps

logger = logging.getLogger(__name__)


class SavedOffsets(NamedTuple):
    """A log's offsets from the checkpoints; 0 where it is not in them."""

    recovery_point: int = 0
    start_offset: int = 0
    first_dirty_offset: int | None = None
    """Up to where its cleaner has come. If there is one, compaction may have left gaps between
    offsets, even if the topic is no longer compacted."""


class Recovery:
    """One log's scan. `end_offset`: the end of what was found sound so far."""

    def __init__(self, log: Log, saved: SavedOffsets) -> None:
        self._log = log
        self._recovery_point = saved.recovery_point
        # Compaction takes place below these: only there it leaves gaps between segments.
        self._compacted_end = max(saved.recovery_point, saved.first_dirty_offset or 0)
        self.end_offset = log.start_offset

    def run(self) -> Steps[int]:
        """Scan and cut; return the log end offset. The indexes then match what is left."""
        log = self._log
        # One offset less: a segment that ends at the recovery point may have been sealed, and its
        # indexes completed, after the flush that moved the recovery point there.
        first = log.segment_index(self._recovery_point - 1)
        yield from check_indexes(log, log.segments[:first])
        self.end_offset = log.segments[first].base_offset
        for segment in log.segments[first:]:
            base_offset = segment.base_offset
            if base_offset > self._compacted_end and base_offset != self.end_offset:
                logger.warning("%s does not begin at %d: removed", segment.path, self.end_offset)
                self._retire_from(segment)
                break
            if not (yield from self._scan(segment)):
                self._retire_from(segment, 1)
                break
            if segment is not log.active:
                log.seal(segment)
                segment.close_idle()
        log.active.trim()  # disk space that was reserved before the crash
        log.context.metrics.recovered_logs += 1
        return self.end_offset

    def _retire_from(self, segment: Segment, distance: int = 0) -> None:
        segments = self._log.segments
        self._log.retire(segments[segments.index(segment) + distance :][::-1])

    def _follows(self, base_offset: int) -> bool:
        """Whether a batch with this base offset may come next in a segment.

        Below the recovery point anything may. Beyond it, a log that was never compacted has no
        gaps: a gap means a damaged base offset, which the CRC does not cover. A follower of a
        compacted log takes over its leader's gaps.
        """
        if base_offset <= self._recovery_point or base_offset == self.end_offset:
            return True
        return self._log.may_leave_gaps and base_offset > self.end_offset

    def _scan(self, segment: Segment) -> Steps[bool]:
        """Check the segment above the recovery point and cut it; return whether it was whole.

        Below the recovery point only headers are read: those batches were synced, and damage to one
        is no reason to cut off what follows. Above it whole batches are checked.
        """
        log, end, pace = self._log, segment.size, Pace()
        interval_bytes = log.settings.index_interval_bytes
        start = valid_end = restart_indexes(segment, self._recovery_point)
        self.end_offset = segment.base_offset
        try:
            walk = segment.walk_spans(start, interval_bytes, self._recovery_point)
            for position, span, _ in walk:
                base_offset = span.base_offset
                if position == start:
                    log.epochs.truncate_from_end(base_offset)  # later ones are read from the log
                    self.end_offset = max(self.end_offset, base_offset if start else 0)
                if not self._follows(base_offset):
                    reason = f"base offset {base_offset} where {self.end_offset} must follow"
                    raise DamagedSegment(segment.path, position, reason)
                segment.note_span(position, span, interval_bytes)
                log.note_epoch(span)
                valid_end, self.end_offset = segment.size, span.last_offset + 1
                log.context.metrics.recovered_records += span.record_count
                if pace.is_over(span.size):
                    yield None
        except DamagedSegment as damage:
            logger.warning("%s: %d bytes are cut off", damage, end - valid_end)
            log.context.metrics.truncated_bytes += end - valid_end
            segment.cut(valid_end)
        log.context.metrics.recovered_bytes += valid_end - start
        return valid_end == end


def check_indexes(log: Log, segments: Sequence[Segment]) -> Steps[None]:
    """Rebuild unusable indexes, up to the first damaged batch header."""
    for segment in segments:
        yield None
        if reason := index_fault(segment):
            logger.warning("%s: the indexes are rebuilt", reason)
            try:
                log.rebuild_indexes(segment)
            except DamagedSegment as damage:
                logger.error("%s: the rest of this segment cannot be read", damage)
        segment.close_idle()  # a log may have more segments than a process may have files open
