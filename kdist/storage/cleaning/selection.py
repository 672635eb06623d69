"""Which log is cleaned next, how far, and which of its segments become one (pure).

    first segment      first dirty offset       end of the dirty section      log end offset
         |  clean             |  dirty                   |  not to be cleaned yet   |

The dirtiest log is cleaned first: the one with the largest share of dirty bytes, if that is above
`min.cleanable.dirty.ratio`, or one whose oldest dirty record has waited `max.compaction.lag.ms`.
The rules are Kafka's (`LogCleanerManager`, `Cleaner.groupSegmentsBySize`), but that the dirty
section ends with a whole segment, and at the recovery point at the latest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kdist.config.kinds import INT64_MAX
from kdist.config.topic import TopicSettings
from kdist.storage.retention import RELATIVE_OFFSET_MAX
from kdist.storage.segment import FILE_BYTES_MAX


class SegmentFacts(NamedTuple):
    """What is looked at in a closed segment."""

    base_offset: int
    end_offset: int  # where the next segment begins
    size_bytes: int
    index_bytes: int  # of the larger index
    largest_timestamp_ms: int  # negative without one
    first_timestamp_ms: Callable[[], int | None]  # of its first batch


class Dirt(NamedTuple):
    """How dirty a log is."""

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


def find_dirt(
    segments: Sequence[SegmentFacts],
    first_dirty_offset: int,
    limit: int,
    settings: TopicSettings,
    now_ms: int,
) -> Dirt:
    """Measure a log by its closed segments, in order. Nothing at or above `limit` is cleaned."""
    end_offset = first_dirty_offset
    clean_bytes = dirty_bytes = 0
    is_overdue = False
    for segment in segments:
        if segment.end_offset <= first_dirty_offset:
            clean_bytes += segment.size_bytes
            continue
        if segment.end_offset > limit or _is_too_young(segment, settings, now_ms):
            break
        end_offset = segment.end_offset
        dirty_bytes += segment.size_bytes
        is_overdue = is_overdue or _is_overdue(segment, settings, now_ms)
    return Dirt(first_dirty_offset, end_offset, clean_bytes, dirty_bytes, is_overdue)


def _is_too_young(segment: SegmentFacts, settings: TopicSettings, now_ms: int) -> bool:
    # Without a lag timestamps do not count: one far in the future would hold up its log for years.
    lag_ms = settings.min_compaction_lag_ms
    return lag_ms > 0 and now_ms - segment.largest_timestamp_ms < lag_ms


def _is_overdue(segment: SegmentFacts, settings: TopicSettings, now_ms: int) -> bool:
    if settings.max_compaction_lag_ms == INT64_MAX:
        return False
    first_ms = segment.first_timestamp_ms()
    return first_ms is not None and 0 < first_ms < now_ms - settings.max_compaction_lag_ms


def group_segments(
    segments: Iterable[SegmentFacts], settings: TopicSettings
) -> list[list[SegmentFacts]]:
    """The segments that may become one, together no larger than a segment may be."""
    groups: list[list[SegmentFacts]] = []
    for segment in segments:
        if groups and _fits([*groups[-1], segment], settings):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _fits(group: Sequence[SegmentFacts], settings: TopicSettings) -> bool:
    size_max = min(settings.segment_bytes, FILE_BYTES_MAX)
    return (
        sum(each.size_bytes for each in group) <= size_max
        and sum(each.index_bytes for each in group) <= settings.segment_index_bytes
        and group[-1].end_offset - group[0].base_offset <= RELATIVE_OFFSET_MAX
    )
