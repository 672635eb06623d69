"""Metrics of storage: appends, flushes, segments, recovery, free disk space, compaction."""

from __future__ import annotations

from kdist.metrics.declare import (
    Histogram,
    Metrics,
    Reading,
    counter,
    gauge,
    histogram,
    metrics,
    reading,
)


@metrics
class RetentionMetrics(Metrics):
    """One topic, shown by the leader of its partition 0; the family's label is `topic`.

    A topic that keeps its records for good is not shown.
    """

    retention_seconds: float = gauge(
        "For how long the topic keeps records (retention.ms).",
        name="kdist_topic_retention_seconds",
    )


@metrics
class StorageMetrics(Metrics):
    """One broker's disk and all logs on it."""

    PREFIX = "kdist_log_"

    appended_records: int = counter("Records appended to all logs.")
    appended_batches: int = counter("Record batches appended to all logs.")
    appended_bytes: int = counter("Bytes of record batches appended to all logs.")
    refused_appends: int = counter("Appends refused because the disk has no room left.")
    flush_seconds: Histogram = histogram(
        "How long each flush of a log, or of the whole disk, took."
    )
    rolled_segments: int = counter("Segments closed, and the next one begun.")
    deleted_segments: int = counter("Segments deleted by retention or a delete of records.")
    deleted_bytes: int = counter(
        "Bytes of the segments deleted by retention or a delete of records."
    )
    recovered_logs: int = counter(
        "Logs scanned because the last stop was not clean.",
        name="kdist_recovery_scanned_logs_total",
    )
    recovered_records: int = counter(
        "Records in the batches that recovery scanned.", name="kdist_recovery_scanned_records_total"
    )
    recovered_bytes: int = counter(
        "Bytes that recovery scanned.", name="kdist_recovery_scanned_bytes_total"
    )
    truncated_bytes: int = counter(
        "Bytes that recovery cut off as torn or invalid.",
        name="kdist_recovery_truncated_bytes_total",
    )
    partitions: Reading = reading(
        "Partitions whose logs this broker has open.", name="kdist_log_open_partitions"
    )
    segments: Reading = reading("Segments of all open logs.", name="kdist_log_open_segments")
    size_bytes: Reading = reading("Bytes in the segments of all open logs.")
    unflushed_records: Reading = reading("Records above the recovery points of all open logs.")
    free_bytes: Reading = reading(
        "Bytes that the broker may still write to its disk.", name="kdist_disk_free_bytes"
    )


@metrics
class CleanerMetrics(Metrics):
    """One broker's cleaner: its passes over logs, what they removed, and whether it keeps up."""

    PREFIX = "kdist_cleaner_"

    passes: int = counter("Passes over a log that were completed.")
    abandoned_passes: int = counter(
        "Passes given up: the log was deleted or truncated, the disk was full, or the process died."
    )
    pass_seconds: Histogram = histogram("How long each completed pass over a log took.")
    read_bytes: int = counter("Bytes of logs that the cleaner has read.")
    seen_records: int = counter("Records that the cleaner has looked at.")
    removed_records: int = counter("Records that the cleaner has removed.")
    removed_bytes: int = counter("Bytes by which cleaned segments were smaller than before.")
    deaths: int = counter("How often the cleaner process has ended unasked.")
    is_dead: int = gauge(
        "1 while the cleaner process has died and has not answered since.",
        name="kdist_cleaner_dead",
    )
    due_seconds: Reading = reading(
        "For how long a log has been to be cleaned without a pass over it completed, the longest."
    )
    uncleanable_partitions: int = gauge(
        "Partitions that are not cleaned any more until the broker starts anew."
    )
