"""Metrics of replication, and of the produce and fetch handlers."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, Reading, counter, metrics, reading


@metrics
class ReplicationMetrics(Metrics):
    """All partitions that one broker has a replica of."""

    partitions: Reading = reading(
        "Partitions that this broker has a replica of.", name="kdist_partitions_hosted"
    )
    leaders: Reading = reading("Partitions that this broker leads.", name="kdist_partitions_led")
    under_min_isr: Reading = reading(
        "Partitions led here with fewer in-sync replicas than min.insync.replicas.",
        name="kdist_partitions_under_min_isr",
    )
    delayed_operations: Reading = reading("Requests that wait for records, a flush, or the clock.")
    expired_operations: int = counter(
        "Requests that timed out while they waited.", name="kdist_delayed_operations_expired_total"
    )
    slow_writes: int = counter(
        "Writes that took more than 2 ms. Once waiting for the disk takes a hundredth of the time, "
        "a thread does the writes for some seconds.",
        name="kdist_append_slow_writes_total",
    )
    failed_produces: int = counter(
        "Produces to a partition that were answered with an error.",
        name="kdist_produce_failed_total",
    )
    failed_fetches: int = counter(
        "Fetches of a partition that were answered with an error.", name="kdist_fetch_failed_total"
    )
    cold_fetches: int = counter(
        "Fetches of records that had to be read from the disk.", name="kdist_fetch_cold_total"
    )
    converted_fetches: int = counter(
        "Fetches converted to an old client's message format.",
        name="kdist_fetch_down_converted_total",
    )
    fetch_sessions: Reading = reading("Fetch sessions that are kept.")
    evicted_sessions: int = counter(
        "Fetch sessions dropped to make room for another.",
        name="kdist_fetch_sessions_evicted_total",
    )
