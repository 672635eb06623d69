"""Constraints between a topic's settings, beyond what each one's own row says (pure).

A rule returns a claim that says how the values do not fit together, or None. A refusing rule finds
a contradiction; a warning rule finds what Kafka allows and users set, but seldom intend.
"""

from __future__ import annotations

from collections.abc import Callable

from kdist.config.kinds import INT64_MAX
from kdist.config.topic import TopicSettings

Rule = Callable[[TopicSettings], str | None]


def compaction_lags_are_ordered(topic: TopicSettings) -> str | None:
    """`min.compaction.lag.ms` is not above `max.compaction.lag.ms`."""
    if topic.min_compaction_lag_ms <= topic.max_compaction_lag_ms:
        return None
    return "min.compaction.lag.ms is above max.compaction.lag.ms"


def cleanup_policy_is_named_once(topic: TopicSettings) -> str | None:
    """`cleanup.policy` names no policy twice."""
    if len(set(topic.cleanup_policy)) == len(topic.cleanup_policy):
        return None
    return "cleanup.policy names a policy twice"


def largest_batch_fits_a_segment(topic: TopicSettings) -> str | None:
    """`max.message.bytes` is not above `segment.bytes`: a batch is never split."""
    if topic.max_message_bytes <= topic.segment_bytes:
        return None
    return (
        f"segment.bytes ({topic.segment_bytes}) is below max.message.bytes"
        f" ({topic.max_message_bytes}): batches between the two are refused"
    )


def segments_roll_before_retention(topic: TopicSettings) -> str | None:
    """`segment.ms` is not above `retention.ms`: the active segment is never deleted."""
    if "delete" not in topic.cleanup_policy or topic.retention_ms < 0:
        return None
    if topic.segment_ms <= topic.retention_ms:
        return None
    return (
        f"segment.ms ({topic.segment_ms}) is above retention.ms ({topic.retention_ms}):"
        " in a partition with little traffic records outlive their retention"
    )


def exposed_records_get_flushed(topic: TopicSettings) -> str | None:
    """With `flush.before.expose`, `flush.ms` must be set, so that all records become visible."""
    if not topic.flush_before_expose:
        return None
    if topic.flush_ms != INT64_MAX:
        return None
    return (
        "flush.before.expose is on and flush.ms is off: records produced with acks 0 or 1"
        " stay invisible until their partition is flushed for another reason"
    )


REFUSES: tuple[Rule, ...] = (compaction_lags_are_ordered, cleanup_policy_is_named_once)
WARNS: tuple[Rule, ...] = (
    largest_batch_fits_a_segment,
    segments_roll_before_retention,
    exposed_records_get_flushed,
)
