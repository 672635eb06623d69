"""The settings of a topic, with the names of their defaults in a broker's file.

A topic's value is its own override, else the broker's `log.*` setting, else the default.
Names, defaults and bounds are Apache Kafka 3.9's ("Topic configs"); a row that is kdist's own says
so.
"""

from __future__ import annotations

from typing import Literal

from kdist.config.declare import Settings, Synonym, setting, settings
from kdist.config.kinds import INT64_MAX, int32, int64

Codec = Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


@settings
class TopicSettings(Settings):
    """What may differ from topic to topic. Every change takes effect without a restart."""

    segment_bytes: int32 = setting(
        default=1 << 30,
        minimum=14,
        subject="Segments",
        broker="log.segment.bytes",
        doc="A new segment is begun before the active one would grow beyond this size.",
    )
    segment_ms: int64 = setting(
        default=7 * DAY_MS,
        minimum=1,
        broker="log.roll.ms",
        broker_synonyms=(Synonym("log.roll.hours", HOUR_MS),),
        default_of_synonym=True,
        doc="A new segment is begun once the active one's first record is this old.",
    )
    segment_jitter_ms: int64 = setting(
        default=0,
        minimum=0,
        broker="log.roll.jitter.ms",
        broker_synonyms=(Synonym("log.roll.jitter.hours", HOUR_MS),),
        default_of_synonym=True,
        doc="A random amount up to this, and below `segment.ms`, is subtracted from that, so that "
        "logs do not all roll at once.",
    )
    segment_index_bytes: int32 = setting(
        default=10 << 20,
        minimum=4,
        broker="log.index.size.max.bytes",
        doc="A new segment is begun once the active one's offset or time index is this large.",
    )
    index_interval_bytes: int32 = setting(
        default=4096,
        minimum=0,
        broker="log.index.interval.bytes",
        doc="An index entry is written for about every this many bytes appended.",
    )
    preallocate: bool = setting(
        default=False,
        broker="log.preallocate",
        doc="A new segment has disk space for all of `segment.bytes` reserved at once, "
        "instead of in steps of `log.preallocation.step.bytes`.",
    )
    file_delete_delay_ms: int64 = setting(
        default=MINUTE_MS,
        minimum=0,
        broker="log.segment.delete.delay.ms",
        doc="A file is unlinked this long after it was renamed to `.deleted`, so that reads "
        "in progress can finish.",
    )
    cleanup_policy: tuple[Literal["delete", "compact"], ...] = setting(
        default=("delete",),
        subject="Retention",
        broker="log.cleanup.policy",
        doc="`delete` drops old segments, `compact` keeps the last record of each key, both "
        "together do both; empty keeps everything.",
    )
    retention_ms: int64 = setting(
        default=7 * DAY_MS,
        minimum=-1,
        broker="log.retention.ms",
        broker_synonyms=(
            Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ),
        default_of_synonym=True,
        doc="A closed segment whose newest record is older than this is deleted; -1 keeps "
        "it for ever.",
    )
    retention_bytes: int64 = setting(
        default=-1,
        broker="log.retention.bytes",
        doc="The oldest segments of a partition are deleted while those left hold at least "
        "this much; a negative value sets no limit.",
    )
    flush_messages: int64 = setting(
        default=INT64_MAX,
        minimum=1,
        subject="Flush",
        broker="log.flush.interval.messages",
        doc="A partition's log is flushed once this many records are unflushed.",
    )
    flush_ms: int64 = setting(
        default=INT64_MAX,
        minimum=0,
        broker="log.flush.interval.ms",
        broker_synonyms=(Synonym("log.flush.scheduler.interval.ms"),),
        default_of_synonym=True,
        doc="A partition's log is flushed once its oldest unflushed record has waited this long.",
    )
    flush_before_expose: bool = setting(
        default=False,
        broker="log.flush.before.expose",
        doc="kdist's own: records become visible to consumers, and acks=all produces are answered, "
        "only after a flush.",
    )
    delete_retention_ms: int64 = setting(
        default=DAY_MS,
        minimum=0,
        subject="Compaction",
        broker="log.cleaner.delete.retention.ms",
        doc="A tombstone of a compacted topic stays readable for this long after compaction "
        "has reached it.",
    )
    min_compaction_lag_ms: int64 = setting(
        default=0,
        minimum=0,
        broker="log.cleaner.min.compaction.lag.ms",
        doc="A record stays uncompacted for at least this long.",
    )
    max_compaction_lag_ms: int64 = setting(
        default=INT64_MAX,
        minimum=1,
        broker="log.cleaner.max.compaction.lag.ms",
        doc="A log is compacted once a record has waited this long for it, however small "
        "the dirty section is.",
    )
    min_cleanable_dirty_ratio: float = setting(
        default=0.5,
        minimum=0,
        maximum=1,
        broker="log.cleaner.min.cleanable.ratio",
        doc="A log is compacted once this share of its bytes is dirty, that is, not yet compacted.",
    )
    max_message_bytes: int32 = setting(
        default=(1 << 20) + 12,
        minimum=0,
        subject="Records",
        broker="message.max.bytes",
        doc="A record batch larger than this, as received (compressed or not), is refused.",
    )
    compression_type: Codec = setting(
        default="producer",
        broker="compression.type",
        doc="The codec that batches are stored with; `producer` stores them as received, "
        "which costs nothing.",
    )
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = setting(
        default="CreateTime",
        broker="log.message.timestamp.type",
        doc="Whether a record's timestamp is the producer's or the time of its append.",
    )
    message_timestamp_before_max_ms: int64 = setting(
        default=INT64_MAX,
        minimum=0,
        synonyms=(Synonym("message.timestamp.difference.max.ms"),),
        broker="log.message.timestamp.before.max.ms",
        broker_synonyms=(Synonym("log.message.timestamp.difference.max.ms"),),
        doc="A record whose CreateTime lies further in the past than this is refused.",
    )
    message_timestamp_after_max_ms: int64 = setting(
        default=INT64_MAX,
        minimum=0,
        synonyms=(Synonym("message.timestamp.difference.max.ms"),),
        broker="log.message.timestamp.after.max.ms",
        broker_synonyms=(Synonym("log.message.timestamp.difference.max.ms"),),
        doc="A record whose CreateTime lies further in the future than this is refused.",
    )
    message_compressed_validation_enable: bool = setting(
        default=False,
        broker="log.message.compressed.validation.enable",
        doc="kdist's own: whether a compressed batch is unpacked when it is produced, and refused "
        "if its records cannot be read, as one that is not compressed always is.",
    )
    message_downconversion_enable: bool = setting(
        default=True,
        broker="log.message.downconversion.enable",
        doc="Whether records are converted for clients that know only the old message formats.",
    )
    min_insync_replicas: int32 = setting(
        default=1,
        minimum=1,
        subject="Replication",
        broker="min.insync.replicas",
        doc="A produce with acks=all is refused while fewer replicas than this are in sync; if a"
        " topic has fewer replicas, while not all of them are in sync.",
    )
    unclean_leader_election_enable: bool = setting(
        default=False,
        broker="unclean.leader.election.enable",
        doc="Whether a replica that is not in sync may become leader when no other is left, "
        "which loses records.",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        default=(),
        topic_only=True,
        doc="The replicas whose followers are sent no more than `leader.replication.throttled.rate`"
        " while they are not in sync: `<partition>:<broker>` of the leaders, or `*` for all.",
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        default=(),
        topic_only=True,
        doc="The replicas for which no more than `follower.replication.throttled.rate` is fetched"
        " while they are not in sync: `<partition>:<broker>` of the followers, or `*` for all.",
    )
