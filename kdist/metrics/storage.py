"""Metrics of storage: appends, flushes, segments, recovery, and free disk space."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, Reading, counter, histogram, metrics, reading
from kdist.metrics.histogram import Histogram


@metrics
class StorageMetrics(Metrics):
    """One broker's disk and all logs on it."""

    appended_records: int = counter(
        "kdist_log_appended_records_total", "Records appended to all logs."
    )
    appended_batches: int = counter(
        "kdist_log_appended_batches_total", "Record batches appended to all logs."
    )
    appended_bytes: int = counter(
        "kdist_log_appended_bytes_total", "Bytes of record batches appended to all logs."
    )
    refused_appends: int = counter(
        "kdist_log_refused_appends_total", "Appends refused because the disk has no room left."
    )
    flush_seconds: Histogram = histogram(
        "kdist_log_flush_seconds", "How long each flush of a log, or of the whole disk, took."
    )
    rolled_segments: int = counter(
        "kdist_log_rolled_segments_total", "Segments closed, and the next one begun."
    )
    deleted_segments: int = counter(
        "kdist_log_deleted_segments_total", "Segments dropped by retention or a delete of records."
    )
    deleted_bytes: int = counter(
        "kdist_log_deleted_bytes_total", "Bytes of the segments dropped by retention or a delete."
    )
    recovered_logs: int = counter(
        "kdist_recovery_scanned_logs_total", "Logs scanned because the last stop was not clean."
    )
    recovered_records: int = counter(
        "kdist_recovery_scanned_records_total", "Records in the batches that recovery scanned."
    )
    recovered_bytes: int = counter(
        "kdist_recovery_scanned_bytes_total", "Bytes that recovery scanned."
    )
    truncated_bytes: int = counter(
        "kdist_recovery_truncated_bytes_total", "Bytes that recovery cut off as torn or invalid."
    )
    partitions: Reading = reading(
        "kdist_log_open_partitions", "Partitions whose logs this broker has open."
    )
    segments: Reading = reading("kdist_log_open_segments", "Segments of all open logs.")
    size_bytes: Reading = reading("kdist_log_size_bytes", "Bytes in the segments of all open logs.")
    unflushed_records: Reading = reading(
        "kdist_log_unflushed_records", "Records above the recovery points of all open logs."
    )
    free_bytes: Reading = reading(
        "kdist_disk_free_bytes", "Bytes that the broker may still write to its disk."
    )
