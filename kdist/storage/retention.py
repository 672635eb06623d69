"""Which segments of a log are due for deletion, and when the active one is closed (pure).

Segments are deleted from the oldest on, each for one of three reasons: it lies wholly below the log
start offset, the log has `retention.bytes` without it, or its newest record is older than
`retention.ms`. The first that must stay ends this. Only segments below the high watermark are
deleted. The active segment never is: if it is due, the log rolls first. The rules are Kafka's
(UnifiedLog.deleteOldSegments, LogSegment.shouldRoll).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

RELATIVE_OFFSET_MAX = 2**31 - 1  # indexes hold offsets relative to the segment's base in an int32


class SegmentFacts(NamedTuple):
    """What retention looks at in a segment."""

    base_offset: int
    size_bytes: int
    largest_timestamp_ms: int | None  # None if no record has a timestamp
    modified_ms: int  # when its file last changed: stands in for the timestamp

    @property
    def newest_ms(self) -> int:
        """The time that retention counts from."""
        timestamp = self.largest_timestamp_ms
        return self.modified_ms if timestamp is None or timestamp < 0 else timestamp


class RetentionLimits(NamedTuple):
    """What a log keeps. A topic without `delete` in its `cleanup.policy` has both limits at -1."""

    retention_ms: int  # -1 for no limit
    retention_bytes: int  # negative for no limit
    log_start_offset: int
    high_watermark: int
    log_end_offset: int


class DeletionReason(enum.StrEnum):
    """Why a segment is deleted, as the end of a log line's sentence."""

    LOG_START_OFFSET = "lies below the log start offset"
    SIZE = "is above retention.bytes"
    TIME = "is older than retention.ms"


class Deletion(NamedTuple):
    """One segment that is due for deletion."""

    base_offset: int
    reason: DeletionReason


class RetentionPlan(NamedTuple):
    """What to delete, oldest first."""

    delete: tuple[Deletion, ...] = ()
    roll_first: bool = False  # the active segment is among them: roll the log, then delete


def plan_retention(
    segments: Sequence[SegmentFacts], limits: RetentionLimits, now_ms: int
) -> RetentionPlan:
    """Decide about all segments of a log, given in order; the last is the active one."""
    excess_bytes = sum(segment.size_bytes for segment in segments) - limits.retention_bytes
    delete: list[Deletion] = []
    for index, segment in enumerate(segments):
        is_active = index == len(segments) - 1
        end_offset = limits.log_end_offset if is_active else segments[index + 1].base_offset
        if end_offset > limits.high_watermark or (is_active and not segment.size_bytes):
            break
        if not is_active and end_offset <= limits.log_start_offset:
            reason = DeletionReason.LOG_START_OFFSET
        elif limits.retention_bytes >= 0 and segment.size_bytes <= excess_bytes:
            reason = DeletionReason.SIZE
        elif limits.retention_ms >= 0 and now_ms - segment.newest_ms > limits.retention_ms:
            reason = DeletionReason.TIME
        else:
            return RetentionPlan(tuple(delete))
        delete.append(Deletion(segment.base_offset, reason))
        excess_bytes -= segment.size_bytes
    return RetentionPlan(tuple(delete), len(segments) > 0 and len(delete) == len(segments))


class RollReason(enum.StrEnum):
    """Why the active segment is closed, as the end of a log line's sentence."""

    SIZE = "is full"
    TIME = "has reached segment.ms"
    INDEX = "has a full index"
    OFFSET = "is 2**31 offsets long"


def waited_ms(
    first_timestamp_ms: int | None, created_ms: int, incoming_timestamp_ms: int, now_ms: int
) -> int:
    """The age of a segment for `segment.ms`.

    From its first batch's largest timestamp to the incoming batch's, so that a mirrored or rebuilt
    log gets the same segments. By the clock only if the first batch has no timestamp.
    """
    if first_timestamp_ms is None or first_timestamp_ms < 0:
        return now_ms - created_ms
    # A batch without a timestamp makes this negative, which rolls nothing; as in Kafka.
    return incoming_timestamp_ms - first_timestamp_ms


def choose_roll(
    size_bytes: int,
    incoming_bytes: int,
    segment_bytes: int,
    is_expired: bool,
    is_index_full: bool,
    relative_offset: int,
) -> RollReason | None:
    """Whether to close the active segment before an append, and why.

    `segment_bytes` is the setting; `is_expired` says that `waited_ms(...)` is above `segment.ms`
    less this segment's jitter; `relative_offset` is the incoming batch's last offset less the base
    offset.
    Asked for every append: plain arguments and comparisons, no tuples.
    """
    if relative_offset > RELATIVE_OFFSET_MAX or relative_offset < 0:
        return RollReason.OFFSET
    if not size_bytes:
        # Kafka would roll here for a batch larger than segment.bytes, to a segment of the same
        # name. Appends refuse such a batch from producers; a follower must take its leader's.
        return None
    if size_bytes + incoming_bytes > segment_bytes:
        return RollReason.SIZE
    if is_expired:
        return RollReason.TIME
    return RollReason.INDEX if is_index_full else None
