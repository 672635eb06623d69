"""Metrics of replication, and of the produce and fetch handlers."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, Reading, counter, metrics, reading


@metrics
class ReplicationMetrics(Metrics):
    """All partitions that one broker has a replica of."""

    partitions: Reading = reading(
        "kdist_partitions_hosted", "Partitions that this broker has a replica of."
    )
    leaders: Reading = reading("kdist_partitions_led", "Partitions that this broker leads.")
    under_min_isr: Reading = reading(
        "kdist_partitions_under_min_isr",
        "Partitions led here with fewer in-sync replicas than min.insync.replicas.",
    )
    delayed_operations: Reading = reading(
        "kdist_delayed_operations", "Requests that wait for records, a flush, or the clock."
    )
    expired_operations: int = counter(
        "kdist_delayed_operations_expired_total", "Requests that timed out while they waited."
    )
    slow_writes: int = counter(
        "kdist_append_slow_writes_total",
        "Writes that took more than 2 ms. Once waiting for the disk takes a hundredth of the time, "
        "a thread does the writes for some seconds.",
    )
    failed_produces: int = counter(
        "kdist_produce_failed_total", "Produces to a partition that were answered with an error."
    )
    failed_fetches: int = counter(
        "kdist_fetch_failed_total", "Fetches of a partition that were answered with an error."
    )
    cold_fetches: int = counter(
        "kdist_fetch_cold_total", "Fetches of records that had to be read from the disk."
    )
    converted_fetches: int = counter(
        "kdist_fetch_down_converted_total", "Fetches converted to an old client's message format."
    )
    fetch_sessions: Reading = reading("kdist_fetch_sessions", "Fetch sessions that are kept.")
    evicted_sessions: int = counter(
        "kdist_fetch_sessions_evicted_total", "Fetch sessions dropped to make room for another."
    )
