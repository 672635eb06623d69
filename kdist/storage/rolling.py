"""When the active segment must be closed: checked before every append, and mostly cheaply.

`retention.choose_roll` decides; `RollWatch` remembers up to where it need not be asked again.
"""

from __future__ import annotations

import random

from kdist.config.topic import TopicSettings
from kdist.model import NO_TIMESTAMP
from kdist.records.codec import BatchTotals
from kdist.storage.retention import RELATIVE_OFFSET_MAX, RollReason, choose_roll, waited_ms
from kdist.storage.scan import DamagedSegment
from kdist.storage.segment import Segment

_INDEX_ENTRY_MAX = 12  # bytes of an entry in the larger index


class RollWatch:
    """Owner: the log; a new one for each active segment and each change of settings."""

    __slots__ = ("_offset", "_position", "_roll_after_ms", "_settings", "_timestamp")

    def __init__(self, settings: TopicSettings, rng: random.Random) -> None:
        segment_ms = settings.segment_ms
        if "compact" in settings.cleanup_policy:  # the active segment is not cleaned
            segment_ms = min(segment_ms, settings.max_compaction_lag_ms)
        jitter_ms = min(settings.segment_jitter_ms, segment_ms)  # as in Kafka
        self._roll_after_ms = segment_ms - (rng.randrange(jitter_ms) if jitter_ms else 0)
        self._settings = settings
        self.forget()

    def forget(self) -> None:
        """Have the next append checked in full."""
        self._position = self._timestamp = self._offset = -1

    def must_look(self, position: int, start_offset: int, totals: BatchTotals) -> bool:
        """Whether an append there needs `look`. It never misses a roll, and is rarely True without
        one."""
        size, offset_count, _, newest_ms, _ = totals
        return (
            position + size > self._position
            or newest_ms > self._timestamp
            or start_offset + offset_count > self._offset
        )

    def look(
        self,
        active: Segment,
        position: int,
        size: int,
        last_offset: int,
        newest_ms: int,
        now_ms: int,
    ) -> RollReason | None:
        """Why the active segment must be closed before `size` bytes go to `position`, or None."""
        settings, first_ms = self._settings, _first_timestamp(active)
        waited = waited_ms(first_ms, active.created_ms, newest_ms, now_ms)
        reason = choose_roll(
            position,
            size,
            settings.segment_bytes,
            waited > self._roll_after_ms,
            active.index_bytes > settings.segment_index_bytes - _INDEX_ENTRY_MAX,
            last_offset - active.base_offset,
        )
        if reason is None:
            self._watch(active, first_ms)
        return reason

    def _watch(self, active: Segment, first_ms: int | None) -> None:
        """Set the limits below which no roll can be due.

        An index entry stands for more than `index.interval.bytes` in the log, so neither index is
        full before that many times the entries that still fit.
        """
        settings = self._settings
        entries = (settings.segment_index_bytes - active.index_bytes) // _INDEX_ENTRY_MAX - 1
        index_position = active.size + entries * settings.index_interval_bytes
        self._position = min(settings.segment_bytes, index_position)
        self._offset = active.base_offset + RELATIVE_OFFSET_MAX
        if first_ms is None or first_ms < 0:
            self._timestamp = NO_TIMESTAMP - 1  # its age depends on the clock: look each time
        else:
            self._timestamp = first_ms + self._roll_after_ms


def _first_timestamp(active: Segment) -> int | None:
    """None also if the first batch is damaged, which must not prevent appends."""
    try:
        return active.first_timestamp
    except DamagedSegment:
        return None
