"""After a crash: the scan of a log from its recovery point, and the cut at the first thing wrong.

What a power loss may leave behind the recovery point is described in `runtime/files.py`; the theory
of what is kept, and why nothing that was flushed can be lost, in docs/formats/recovery.md.
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
from kdist.storage.trimming import retire

logger = logging.getLogger(__name__)


class SavedOffsets(NamedTuple):
    """What the checkpoints say of a log, 0 where they say nothing."""

    recovery_point: int = 0
    start_offset: int = 0
    was_compacted: bool = False
    """Compaction leaves gaps between offsets, also in a topic that is not compacted any more."""


class Recovery:
    """One log's scan. `end_offset` is how far it has got."""

    def __init__(self, log: Log, saved: SavedOffsets) -> None:
        self._log = log
        self._recovery_point = saved.recovery_point
        self._may_leave_gaps = saved.was_compacted or "compact" in log.settings.cleanup_policy
        self.end_offset = log.start_offset

    def run(self) -> Steps[int]:
        """Scan and cut; the log's end offset. The indexes then fit what is left."""
        log = self._log
        # One offset back: the segment that ends at the recovery point may have been sealed, and its
        # indexes completed, after the flush that moved the point there.
        first = log.segment_index(self._recovery_point - 1)
        yield from check_indexes(log, log.segments[:first])
        self.end_offset = log.segments[first].base_offset
        for segment in log.segments[first:]:
            if not self._follows(segment.base_offset):
                logger.warning("%s does not begin at %d: it goes", segment.path, self.end_offset)
                self._retire_from(segment)
                break
            if not (yield from self._scan(segment)):
                self._retire_from(segment, 1)
                break
            if segment is not log.active:
                segment.seal()
                segment.rest()
                log.sealed_unsynced.append(segment)
        log.active.trim()  # disk space that was reserved when the power went
        log.world.metrics.recovered_logs += 1
        return self.end_offset

    def _retire_from(self, segment: Segment, distance: int = 0) -> None:
        segments = self._log.segments
        retire(self._log, segments[segments.index(segment) + distance :][::-1])

    def _follows(self, base_offset: int) -> bool:
        """Whether a segment or batch may stand here.

        What was flushed is taken as it is. Behind that, a log that never was compacted has no gaps:
        a leap is a piece that was lost, or a base offset, which the CRC leaves out, damaged.
        """
        if base_offset <= self._recovery_point or base_offset == self.end_offset:
            return True
        return self._may_leave_gaps and base_offset > self.end_offset

    def _scan(self, segment: Segment) -> Steps[bool]:
        """Check the segment above the recovery point, and cut it; whether it was whole.

        A record below it was synced, and damage to it is no reason to cut off what follows: up to
        there headers are looked at, from there on whole batches.
        """
        log, end, pace = self._log, segment.size, Pace()
        interval_bytes = log.settings.index_interval_bytes
        start = valid_end = restart_indexes(segment, self._recovery_point)
        self.end_offset = segment.base_offset
        try:
            walk = segment.walk_stretches(start, interval_bytes, self._recovery_point)
            for position, stretch, _ in walk:
                base_offset = stretch.base_offset
                if position == start:
                    log.epochs.truncate_from_end(base_offset)  # those behind are read anew
                    self.end_offset = max(self.end_offset, base_offset if start else 0)
                if not self._follows(base_offset):
                    reason = f"base offset {base_offset} where {self.end_offset} must follow"
                    raise DamagedSegment(segment.path, position, reason)
                segment.note_stretch(position, stretch, interval_bytes)
                log.note_epoch(stretch)
                valid_end, self.end_offset = segment.size, stretch.last_offset + 1
                log.world.metrics.recovered_records += stretch.record_count
                if pace.is_over(stretch.size):
                    yield None
        except DamagedSegment as damage:
            logger.warning("%s: %d bytes are cut off", damage, end - valid_end)
            log.world.metrics.truncated_bytes += end - valid_end
            segment.cut(valid_end)
        log.world.metrics.recovered_bytes += valid_end - start
        return valid_end == end


def check_indexes(log: Log, segments: Sequence[Segment]) -> Steps[None]:
    """Make anew the indexes that are of no use. They end where a batch's header is damaged."""
    for segment in segments:
        yield None
        if reason := index_fault(segment):
            logger.warning("%s: the indexes are made anew", reason)
            try:
                log.rebuild_indexes(segment)
            except DamagedSegment as damage:
                logger.error("%s: what is behind it in this segment cannot be read", damage)
        segment.rest()  # a log may have more segments than a process may have files open
