"""Constraints between a topic's settings, beyond what each one's own row says (pure).

A rule returns a claim that says how the values do not fit together, or None. A refusing rule finds
a contradiction; a warning rule finds what Kafka allows and users set, but seldom intend.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from kdist.config.kinds import INT64_MAX
from kdist.config.topic import TopicSettings

_REPLICA = re.compile(r"[0-9]+:[0-9]+")

Rule = Callable[[TopicSettings], str | None]

_INDEX_ENTRY_BYTES = 12  # in the time index, the larger one
_BATCH_BYTES_MIN = 68  # of a batch with one empty record; there is at most one entry for each


def compaction_lags_are_ordered(topic: TopicSettings) -> str | None:
    """`min.compaction.lag.ms` is not above `max.compaction.lag.ms`."""
    if topic.min_compaction_lag_ms <= topic.max_compaction_lag_ms:
        return None
    return "min.compaction.lag.ms is above max.compaction.lag.ms"


def throttled_replicas_are_named(topic: TopicSettings) -> str | None:
    """Throttled replicas are `*` alone, or partitions and brokers by their numbers.

    As in Kafka, an empty item is none: what appends to an empty list may leave one there.
    """
    for name, listed in (
        ("leader", topic.leader_replication_throttled_replicas),
        ("follower", topic.follower_replication_throttled_replicas),
    ):
        given = [each for each in listed if each]
        wrong = [each for each in given if not _REPLICA.fullmatch(each)]
        if wrong and given != ["*"]:
            what = "'*' beside another" if wrong[0] == "*" else f"{wrong[0]!r} for a replica"
            return f"{name}.replication.throttled.replicas has {what}"
    return None


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


def retention_holds_a_segment(topic: TopicSettings) -> str | None:
    """`retention.bytes` is not below `segment.bytes`: the active segment is never deleted."""
    if "delete" not in topic.cleanup_policy or topic.retention_bytes < 0:
        return None
    if topic.segment_bytes <= topic.retention_bytes:
        return None
    return (
        f"retention.bytes ({topic.retention_bytes}) is below segment.bytes ({topic.segment_bytes}):"
        " a partition holds up to a whole segment all the same"
    )


def jitter_is_within_the_age(topic: TopicSettings) -> str | None:
    """`segment.jitter.ms` is not above `segment.ms`, which bounds it (as in Kafka)."""
    if topic.segment_jitter_ms <= topic.segment_ms:
        return None
    return (
        f"segment.jitter.ms ({topic.segment_jitter_ms}) is above segment.ms ({topic.segment_ms}),"
        " and counts as that: a new segment is begun at any age up to it"
    )


def index_outlasts_its_segment(topic: TopicSettings) -> str | None:
    """An index of `segment.index.bytes` has room for the entries of `segment.bytes`."""
    entries = topic.segment_index_bytes // _INDEX_ENTRY_BYTES
    bytes_max = entries * max(topic.index_interval_bytes, _BATCH_BYTES_MIN)
    if bytes_max >= topic.segment_bytes:
        return None
    return (
        f"segment.index.bytes ({topic.segment_index_bytes}) may be full after {bytes_max} bytes,"
        f" with index.interval.bytes at {topic.index_interval_bytes}: a new segment is begun then,"
        f" well before segment.bytes ({topic.segment_bytes})"
    )


def segments_have_index_entries(topic: TopicSettings) -> str | None:
    """`index.interval.bytes` is not above `segment.bytes`, or no segment has an index entry."""
    if topic.index_interval_bytes <= topic.segment_bytes:
        return None
    return (
        f"index.interval.bytes ({topic.index_interval_bytes}) is above segment.bytes"
        f" ({topic.segment_bytes}): indexes stay empty, and a read scans its segment from the start"
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


REFUSES: tuple[Rule, ...] = (
    compaction_lags_are_ordered,
    cleanup_policy_is_named_once,
    throttled_replicas_are_named,
)
WARNS: tuple[Rule, ...] = (
    largest_batch_fits_a_segment,
    segments_roll_before_retention,
    retention_holds_a_segment,
    jitter_is_within_the_age,
    index_outlasts_its_segment,
    segments_have_index_entries,
    exposed_records_get_flushed,
)
