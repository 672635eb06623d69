"""The settings of the group coordinator and of the offsets that groups commit.

Kafka 3.9's names and defaults; a row that differs says so.
"""

from __future__ import annotations

from kdist.config.declare import Settings, setting, settings
from kdist.config.kinds import INT32_MAX, int32, int64


@settings
class GroupSettings(Settings):
    """What the package groups is given."""

    min_session_timeout_ms: int32 = setting(
        "group.min.session.timeout.ms",
        default=6000,
        minimum=1,
        subject="Groups",
        doc="The shortest session timeout that a member may ask for.",
    )
    max_session_timeout_ms: int32 = setting(
        "group.max.session.timeout.ms",
        default=1_800_000,
        minimum=1,
        doc="The longest session timeout that a member may ask for.",
    )
    initial_rebalance_delay_ms: int32 = setting(
        "group.initial.rebalance.delay.ms",
        default=3000,
        minimum=0,
        doc="How long a new group waits for more members before its first assignment.",
    )
    max_size: int32 = setting(
        "group.max.size", default=INT32_MAX, minimum=1, doc="How many members a group may have."
    )
    offset_metadata_max_bytes: int32 = setting(
        default=4096,
        minimum=0,
        subject="Committed offsets",
        doc="The longest metadata that may be stored with a committed offset.",
    )
    offsets_retention_minutes: int32 = setting(
        default=7 * 24 * 60,
        minimum=1,
        unit="minutes",
        doc="A group's committed offsets expire this long after it became empty.",
    )
    offsets_retention_check_interval_ms: int64 = setting(
        default=600_000, minimum=1, doc="How often groups are checked for expired offsets."
    )
    offsets_commit_timeout_ms: int32 = setting(
        default=5000, minimum=1, doc="How long a commit waits until all in-sync replicas have it."
    )
    offsets_topic_num_partitions: int32 = setting(
        default=50,
        minimum=1,
        doc="How many partitions `__consumer_offsets` is created with; must not be changed "
        "afterwards.",
    )
    offsets_topic_replication_factor: int32 | None = setting(
        default=None,
        minimum=1,
        doc="How many replicas `__consumer_offsets` is created with; unset, 3, or as many as there"
        " are hosts alive then.",
    )
    offsets_topic_segment_bytes: int32 = setting(
        default=100 << 20,
        minimum=14,
        doc="The `segment.bytes` that `__consumer_offsets` is created with (Kafka also accepts less"
        ", which no topic can have).",
    )
