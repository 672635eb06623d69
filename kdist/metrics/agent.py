"""The agent's metrics: its own counters, and the state of its host's disks and ZooKeeper server.

They are written to a file, which the node exporter exposes with its own metrics.
"""

from __future__ import annotations

from math import nan

from kdist.metrics.declare import Histogram, Metrics, counter, gauge, histogram, metrics


@metrics
class AgentMetrics(Metrics):
    """One host's agent."""

    PREFIX = "kdist_agent_"

    published_records: int = counter("Records that a broker has taken.")
    dropped_records: int = counter(
        "Records dropped: too many waited, or brokers refuse them for good."
    )
    failed_sends: int = counter("Times that no broker took the queued records.")
    queued_records: int = gauge("Records that wait for a broker.")


@metrics
class SmartMetrics(Metrics):
    """One disk's health, as smartctl reports it.

    The family's labels are `device` (sdb), `serial`, and `disk` (d01; empty if it is no data disk).
    """

    PREFIX = "kdist_smart_"

    is_healthy: float = gauge(
        "1 while the disk does not expect to fail, 0 once it does.", name="kdist_smart_healthy"
    )
    temperature_celsius: float = gauge("Its temperature.")
    reallocated_sectors: float = gauge(
        "Bad sectors replaced by spare ones (ATA 5, SCSI's grown defects)."
    )
    pending_sectors: float = gauge("Sectors that could not be read (ATA 197).")
    uncorrectable_sectors: float = gauge("Sectors found lost (ATA 198), NVMe's media errors.")
    reported_errors: float = gauge("Errors that it could not correct (ATA 187, SCSI's counters).")
    command_timeouts: float = gauge("Commands that took it too long (ATA 188).")
    link_errors: float = gauge("Transfers over the cable that had to be repeated (ATA 199).")


@metrics
class AskedDiskMetrics(Metrics):
    """Whether a disk answers smartctl; the family's labels are `device` and `disk`."""

    PREFIX = "kdist_smart_"

    answer_age_seconds: float = gauge("How long ago the disk last answered smartctl.")
    timeouts: int = counter("Times that it did not answer within half a minute, or not yet.")


@metrics
class CanaryMetrics(Metrics):
    """One broker as clients see it, or whoever leads its partition while it is down.

    The family's label is `broker`. A probe writes a record with acks=all and reads it back.
    """

    PREFIX = "kdist_canary_"

    probes: int = counter("Probes that have ended.")
    failed_probes: int = counter("Those of them that failed, or took too long.")
    seconds: Histogram = histogram("How long the others took.")


@metrics
class DataDiskMetrics(Metrics):
    """Which data disk is on which block device; the family's labels are `device` and `disk`."""

    info: int = gauge(
        "Always 1; its labels are a block device, as the node exporter names it, and the data disk "
        "that is mounted from it, or was until it died.",
        name="kdist_disk_info",
    )


@metrics
class NotAppliedMetrics(Metrics):
    """What the host did not accept of the deployment; the family's label is `role`."""

    count: int = gauge(
        "Things that the host did not accept, such as a setting of the kernel.",
        name="kdist_deployment_not_applied",
    )


@metrics
class WantedMetrics(Metrics):
    """What a broker of the host shall run; the labels are `disk` and those of kdist_build_info."""

    info: int = gauge(
        "Always 1; its labels are the digests of the release, the settings and the unit that the "
        "broker on the disk shall run with.",
        name="kdist_broker_wanted_info",
    )


@metrics
class ZooKeeperMetrics(Metrics):
    """One host's ZooKeeper server, as its `mntr` reports it; NaN for what it does not report."""

    PREFIX = "kdist_zookeeper_"

    is_serving: float = gauge("1 while it serves in an ensemble.", name="kdist_zookeeper_serving")
    is_leading: float = gauge(
        "1 while it leads, or is the only one.", name="kdist_zookeeper_leading"
    )
    synced_followers: float = gauge("Followers that are up to date; the leader's only.")
    voting_servers: float = gauge("Servers that its ensemble has, whether they run or not.")
    outstanding_requests: float = gauge("Requests that are queued in it.")
    slow_fsyncs: float = gauge("Writes of its log that took a second or more, since its start.")
    average_latency_seconds: float = gauge("From a request to its answer, on average.")
    connections: float = gauge("Connections of clients.", name="kdist_zookeeper_open_connections")
    znodes: float = gauge("Znodes in its tree.", name="kdist_zookeeper_kept_znodes")
    data_bytes: float = gauge("Approximate size of its tree.")
    watches: float = gauge("Watches that clients have set.", name="kdist_zookeeper_set_watches")


UNKNOWN = nan
