"""The agent's metrics: its own counters, and the state of its host's disks and ZooKeeper server.

They are written to a file, which the node exporter exposes with its own metrics.
"""

from __future__ import annotations

from math import nan

from kdist.metrics.declare import Metrics, counter, gauge, metrics


@metrics
class AgentMetrics(Metrics):
    """One host's agent."""

    published_records: int = counter(
        "kdist_agent_published_records_total", "Records that a broker has taken."
    )
    dropped_records: int = counter(
        "kdist_agent_dropped_records_total", "Records dropped because too many waited."
    )
    failed_sends: int = counter(
        "kdist_agent_failed_sends_total", "Times that no broker took the queued records."
    )
    queued_records: int = gauge("kdist_agent_queued_records", "Records that wait for a broker.")


@metrics
class SmartMetrics(Metrics):
    """One disk's health, as smartctl reports it; the family's labels are `device` and `serial`."""

    is_healthy: float = gauge(
        "kdist_smart_healthy", "1 while the disk does not expect to fail, 0 once it does."
    )
    temperature_celsius: float = gauge("kdist_smart_temperature_celsius", "Its temperature.")
    reallocated_sectors: float = gauge(
        "kdist_smart_reallocated_sectors", "Bad sectors replaced by spare ones (ATA 5)."
    )
    pending_sectors: float = gauge(
        "kdist_smart_pending_sectors", "Sectors that could not be read (ATA 197)."
    )
    uncorrectable_sectors: float = gauge(
        "kdist_smart_uncorrectable_sectors", "Sectors found lost (ATA 198), NVMe's media errors."
    )
    link_errors: float = gauge(
        "kdist_smart_link_errors", "Transfers over the cable that had to be repeated (ATA 199)."
    )


@metrics
class ZooKeeperMetrics(Metrics):
    """One host's ZooKeeper server, as its `mntr` reports it; NaN for what it does not report."""

    is_serving: float = gauge("kdist_zookeeper_serving", "1 while it serves in an ensemble.")
    is_leading: float = gauge("kdist_zookeeper_leading", "1 while it leads, or is the only one.")
    synced_followers: float = gauge(
        "kdist_zookeeper_synced_followers", "Followers that are up to date; the leader's only."
    )
    outstanding_requests: float = gauge(
        "kdist_zookeeper_outstanding_requests", "Requests that are queued in it."
    )
    average_latency_seconds: float = gauge(
        "kdist_zookeeper_average_latency_seconds", "From a request to its answer, on average."
    )
    connections: float = gauge("kdist_zookeeper_open_connections", "Connections of clients.")
    znodes: float = gauge("kdist_zookeeper_kept_znodes", "Znodes in its tree.")
    data_bytes: float = gauge("kdist_zookeeper_data_bytes", "Approximate size of its tree.")
    watches: float = gauge("kdist_zookeeper_set_watches", "Watches that clients have set.")


UNKNOWN = nan
