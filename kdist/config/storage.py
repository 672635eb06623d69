"""The settings of a broker's one disk and of the logs on it, except those of topics.

Kafka 3.9's names and defaults where the meaning is the same; a row that is kdist's own says so.
"""

from __future__ import annotations

from kdist.config.declare import Settings, setting, settings
from kdist.config.kinds import INT64_MAX, int32, int64


@settings
class StorageSettings(Settings):
    """What the package storage is given besides each topic's `TopicSettings`."""

    reserved_bytes: int64 = setting(
        "log.dir.reserved.bytes",
        default=1 << 30,
        minimum=0,
        subject="Disk and page cache",
        doc="kdist's own: appends are refused while the filesystem has less than this free; "
        "reads and deletes still work.",
    )
    preallocation_step_bytes: int64 = setting(
        "log.preallocation.step.bytes",
        default=16 << 20,
        minimum=0,
        doc="kdist's own: disk space for the active segment is reserved in steps of this "
        "size; 0 reserves none.",
    )
    writeback_step_bytes: int64 = setting(
        "log.writeback.step.bytes",
        default=8 << 20,
        minimum=0,
        doc="kdist's own: where `flush.ms` or `flush.messages` is set, the kernel is asked to "
        "start writeback after each this many bytes appended to a segment; 0 leaves it to the "
        "kernel.",
    )
    cold_read_bytes: int64 = setting(
        "log.cold.read.bytes",
        default=1 << 30,
        minimum=0,
        doc="kdist's own: data read from further than this behind the end of its log is "
        "dropped from the page cache afterwards.",
    )
    flush_scheduler_interval_ms: int64 = setting(
        "log.flush.scheduler.interval.ms",
        default=1000,
        minimum=1,
        maximum=INT64_MAX,
        subject="Storage schedule",
        doc="How often logs are checked for a flush due by `flush.ms`; if set, "
        "also the default of `flush.ms` (Kafka's default is never).",
    )
    flush_offset_checkpoint_interval_ms: int64 = setting(
        "log.flush.offset.checkpoint.interval.ms",
        default=60_000,
        minimum=0,
        doc="How often the recovery points and start offsets of all logs are saved.",
    )
    high_watermark_checkpoint_interval_ms: int64 = setting(
        "replica.high.watermark.checkpoint.interval.ms",
        default=5_000,
        minimum=1,
        doc="How often the high watermarks of all partitions are saved.",
    )
    retention_check_interval_ms: int64 = setting(
        "log.retention.check.interval.ms",
        default=300_000,
        minimum=1,
        doc="How often logs are checked for segments to delete by retention.",
    )
    cleaner_enable: bool = setting(
        "log.cleaner.enable",
        default=True,
        subject="Compaction",
        doc="Whether logs of compacted topics are cleaned.",
    )
    cleaner_backoff_ms: int64 = setting(
        "log.cleaner.backoff.ms",
        default=15_000,
        minimum=0,
        dynamic=True,
        doc="How long the cleaner waits before it looks again, when no log is dirty enough.",
    )
    cleaner_dedupe_buffer_size: int64 = setting(
        "log.cleaner.dedupe.buffer.size",
        default=128 << 20,
        minimum=1 << 20,
        dynamic=True,
        doc="Memory of the cleaner's map, which takes 24 bytes for a key and is filled to nine "
        "tenths; a log with more keys in its dirty section takes several passes.",
    )
    cleaner_io_max_bytes_per_second: int64 = setting(
        "log.cleaner.io.max.bytes.per.second",
        default=INT64_MAX,
        minimum=1024,
        dynamic=True,
        doc="The cleaner reads and writes no more than this, together.",
    )
    producer_id_expiration_ms: int32 = setting(
        default=86_400_000,
        minimum=1,
        subject="Producer state",
        doc="A partition forgets the sequence numbers of a producer that has sent nothing for "
        "this long.",
    )
    producer_id_expiration_check_interval_ms: int32 = setting(
        default=600_000, minimum=1, doc="How often partitions are checked for expired producers."
    )
