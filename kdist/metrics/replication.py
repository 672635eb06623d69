"""Metrics of replication, and of the produce and fetch handlers."""

from __future__ import annotations

from kdist.metrics.declare import Histogram, Metrics, Reading, counter, histogram, metrics, reading


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
    under_replicated: Reading = reading(
        "Partitions led here with fewer in-sync replicas than assigned ones.",
        name="kdist_partitions_under_replicated",
    )
    at_min_isr: Reading = reading(
        "Partitions led here with exactly as many in-sync replicas as min.insync.replicas, and"
        " fewer than assigned ones.",
        name="kdist_partitions_at_min_isr",
    )
    replica_lag_max: Reading = reading(
        "Records that the follower furthest behind lacks, of the partitions led here; without"
        " followers that have not fetched since the partition's leader was elected.",
        name="kdist_replica_lag_max_records",
    )
    isr_shrinks: int = counter(
        "Times that replicas left the ISR of a partition led here.", name="kdist_isr_shrinks_total"
    )
    isr_expands: int = counter(
        "Times that replicas joined the ISR of a partition led here.",
        name="kdist_isr_expands_total",
    )
    replicated_bytes: int = counter(
        "Bytes of record batches appended to replicas that follow.",
        name="kdist_replicated_bytes_total",
    )
    reassigning: Reading = reading(
        "Partitions led here to which a move adds replicas.", name="kdist_partitions_reassigning"
    )
    reassigned_bytes: int = counter(
        "Bytes of record batches appended to replicas that a move adds.",
        name="kdist_reassigned_bytes_total",
    )
    failed_replications: int = counter(
        "Answers of leaders with records that could not be appended.",
        name="kdist_replication_failed_total",
    )
    truncated_committed: int = counter(
        "Committed records cut off from replicas here, since their leader does not have them: it"
        " was elected uncleanly, or has lost them.",
        name="kdist_truncated_committed_records_total",
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
    cold_seconds: Histogram = histogram(
        "How long such a fetch waited for the disk.", name="kdist_fetch_cold_seconds"
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
