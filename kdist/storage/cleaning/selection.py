"""Which log is cleaned next, how far, and which of its segments become one. It changes nothing.

    first segment      first dirty offset       end of the dirty section      log end offset
         |  clean             |  dirty                   |  not to be cleaned yet   |

The dirtiest log is cleaned first: the one with the largest share of dirty bytes, if that is above
`min.cleanable.dirty.ratio`, or one whose oldest dirty record has waited `max.compaction.lag.ms`.
The rules are Kafka's (`LogCleanerManager`, `Cleaner.groupSegmentsBySize`), but that the dirty
section ends with a whole segment, and at the recovery point at the latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kdist.config.kinds import INT64_MAX
from kdist.config.topic import TopicSettings
from kdist.storage.log import Log
from kdist.storage.names import snapshot_offset
from kdist.storage.scan import RELATIVE_OFFSET_MAX
from kdist.storage.segment import FILE_BYTES_MAX, Segment


class ClosedSegment(NamedTuple):
    """A segment, and where the next one begins."""

    segment: Segment
    end_offset: int


def closed_segments(segments: Sequence[Segment]) -> list[ClosedSegment]:
    """All segments of a log but the last."""
    following = [segment.base_offset for segment in segments[1:]]
    return list(map(ClosedSegment, segments, following))


class DirtySection(NamedTuple):
    """What of a log can be cleaned, and how much of it is dirty."""

    first_dirty_offset: int
    end_offset: int  # of the dirty section
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool  # by `max.compaction.lag.ms`

    @property
    def ratio(self) -> float:
        """The dirty share of the bytes that can be cleaned."""
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)

    def is_due(self, settings: TopicSettings) -> bool:
        """Whether the log is to be cleaned."""
        is_dirty = self.ratio > settings.min_cleanable_dirty_ratio
        return self.dirty_bytes > 0 and (self.is_overdue or is_dirty)


def dirty_section_of(log: Log, high_watermark: int, now_ms: int) -> DirtySection:
    """The dirty section of a log, up to what may be cleaned."""
    unstable = log.producers.first_unstable_offset
    limit = min(high_watermark, log.recovery_point, log.active.base_offset)
    limit = limit if unstable is None else min(limit, unstable)
    # A truncation loads the producers from the snapshot at the end of what was cleaned: the batches
    # before it may be gone, for newer ones that it cuts off. So that must be on the disk.
    unsaved = (snapshot_offset(path.rpartition("/")[2]) for path in log.files_to_save)
    limit = min([limit, *(offset - 1 for offset in unsaved if offset is not None)])
    first_dirty = max(log.first_dirty_offset or 0, log.start_offset)
    return _find_section(closed_segments(log.segments), first_dirty, limit, log.settings, now_ms)


def _find_section(
    segments: Iterable[ClosedSegment],
    first_dirty_offset: int,
    limit: int,
    settings: TopicSettings,
    now_ms: int,
) -> DirtySection:
    """Nothing at or above `limit` is cleaned."""
    section_end = first_dirty_offset
    clean_bytes = dirty_bytes = 0
    is_overdue = False
    for segment, end_offset in segments:
        if end_offset <= first_dirty_offset:
            clean_bytes += segment.size
            continue
        if end_offset > limit or _is_too_young(segment, settings, now_ms):
            break
        section_end = end_offset
        dirty_bytes += segment.size
        is_overdue = is_overdue or _is_overdue(segment, settings, now_ms)
    return DirtySection(first_dirty_offset, section_end, clean_bytes, dirty_bytes, is_overdue)


def _is_too_young(segment: Segment, settings: TopicSettings, now_ms: int) -> bool:
    # Without a lag timestamps do not count: one far in the future would hold up its log for years.
    lag_ms = settings.min_compaction_lag_ms
    return lag_ms > 0 and now_ms - segment.largest_timestamp[0] < lag_ms


def _is_overdue(segment: Segment, settings: TopicSettings, now_ms: int) -> bool:
    if settings.max_compaction_lag_ms == INT64_MAX:
        return False
    first_ms = segment.first_timestamp
    return first_ms is not None and 0 < first_ms < now_ms - settings.max_compaction_lag_ms


def group_segments(
    segments: Iterable[ClosedSegment], settings: TopicSettings
) -> list[list[ClosedSegment]]:
    """The segments that may become one, together no larger than a segment may be."""
    groups: list[list[ClosedSegment]] = []
    for each in segments:
        if groups and _fits([*groups[-1], each], settings):
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _fits(group: Sequence[ClosedSegment], settings: TopicSettings) -> bool:
    size_max = min(settings.segment_bytes, FILE_BYTES_MAX)
    return (
        sum(segment.size for segment, _ in group) <= size_max
        and sum(segment.index_bytes for segment, _ in group) <= settings.segment_index_bytes
        and group[-1].end_offset - group[0].segment.base_offset <= RELATIVE_OFFSET_MAX
    )
