"""Metrics of the controller: elections, deletions, and requests to brokers."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, Reading, counter, gauge, metrics, reading


@metrics
class ControllerMetrics(Metrics):
    """One broker as controller; the readings are NaN while it is not the controller."""

    PREFIX = "kdist_controller_"

    is_active: int = gauge("1 while this broker is the controller.")
    epoch: int = gauge("The controller epoch of this broker's last election.")
    elections: int = counter(
        "Times that a partition got another leader than before, or one again; not its first one."
    )
    unclean_elections: int = counter(
        "Leaders elected though committed records may be lost by that."
    )
    deleted_topics: int = counter("Topics whose deletion was completed.")
    requests: int = counter("Requests to brokers that were answered.")
    failed_requests: int = counter(
        "Requests to brokers, and connections, that failed and were tried again."
    )
    refused_partitions: int = counter(
        "Partitions for which a broker answered a request with an error."
    )
    crashed: int = counter(
        "Bugs that the controller met; each cost a client's command, or the controller's term."
    )
    brokers: Reading = reading("Brokers that are registered.")
    fenced_brokers: Reading = reading("Brokers that have replicas and are not registered.")
    topics: Reading = reading("Topics, without those being deleted.")
    partitions: Reading = reading("Partitions of those topics.")
    offline_partitions: Reading = reading("Partitions of those topics without a leader.")
    offline_replicas: Reading = reading(
        "Replicas of those partitions whose broker is down or about to stop."
    )
    imbalanced_partitions: Reading = reading(
        "Partitions of those topics that are not led by their preferred replica."
    )
    recovering_partitions: Reading = reading(
        "Partitions whose leader was elected uncleanly, and has not said that it has recovered."
    )
    reassigning_partitions: Reading = reading("Partitions that are being moved to other replicas.")
    replicas_left_behind: Reading = reading(
        "Replicas that were moved away from brokers that have not deleted their logs yet."
    )
    topics_queued_for_deletion: Reading = reading("Topics that are being deleted.")
    replicas_ineligible_for_deletion: Reading = reading(
        "Replicas of those topics whose broker is down: the deletion waits for it."
    )
    roll_lock_seconds: Reading = reading(
        "For how long the lock of whatever stops brokers has been held; 0 while nobody holds it."
    )
    roll_lock_overdue_seconds: Reading = reading(
        "For how long the lease of that lock has been over, without being renewed or released; 0 "
        "before."
    )
