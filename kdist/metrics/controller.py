"""Metrics of the controller: elections, deletions, and requests to brokers."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, Reading, counter, gauge, metrics, reading


@metrics
class ControllerMetrics(Metrics):
    """One broker as controller; the readings are NaN while it is not the controller."""

    is_active: int = gauge("kdist_controller_is_active", "1 while this broker is the controller.")
    epoch: int = gauge(
        "kdist_controller_epoch", "The controller epoch of this broker's last election."
    )
    elections: int = counter(
        "kdist_controller_elections_total", "Leaders and ISRs of partitions written to ZooKeeper."
    )
    deleted_topics: int = counter(
        "kdist_controller_deleted_topics_total", "Topics whose deletion was completed."
    )
    requests: int = counter(
        "kdist_controller_requests_total", "Requests to brokers that were answered."
    )
    failed_requests: int = counter(
        "kdist_controller_failed_requests_total",
        "Requests to brokers, and connections, that failed and were tried again.",
    )
    refused_partitions: int = counter(
        "kdist_controller_refused_partitions_total",
        "Partitions for which a broker answered a request with an error.",
    )
    brokers: Reading = reading("kdist_controller_brokers", "Brokers that are registered.")
    topics: Reading = reading("kdist_controller_topics", "Topics, without those being deleted.")
    partitions: Reading = reading("kdist_controller_partitions", "Partitions of those topics.")
    offline_partitions: Reading = reading(
        "kdist_controller_offline_partitions", "Partitions of those topics without a leader."
    )
    topics_queued_for_deletion: Reading = reading(
        "kdist_controller_topics_queued_for_deletion", "Topics that are being deleted."
    )
