"""Metrics of the broker: requests by API, and the state of the process as a whole."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, Reading, counter, gauge, histogram, metrics, reading
from kdist.metrics.histogram import Histogram


@metrics
class RequestMetrics(Metrics):
    """The requests of one API; the family's label is its name."""

    answered: int = counter("kdist_requests_total", "Requests answered.")
    failed: int = counter(
        "kdist_requests_failed_total", "Requests answered with an error for the whole of them."
    )
    crashed: int = counter(
        "kdist_requests_crashed_total", "Requests that met a bug; each cost its connection."
    )
    seconds: Histogram = histogram(
        "kdist_request_seconds", "From a request's arrival to its response, waits included."
    )


@metrics
class BrokerMetrics(Metrics):
    """One broker."""

    is_ready: int = gauge("kdist_broker_ready", "1 while the broker serves clients.")
    loop_lag_seconds: Histogram = histogram(
        "kdist_broker_loop_lag_seconds", "How late the event loop calls its timers."
    )
    has_session: Reading = reading(
        "kdist_broker_zookeeper_connected", "1 while its ZooKeeper session is connected."
    )
    expired_sessions: int = counter(
        "kdist_broker_expired_sessions_total", "ZooKeeper sessions of the broker that expired."
    )
    created_topics: int = counter(
        "kdist_broker_auto_created_topics_total", "Topics created because a client asked for them."
    )


@metrics
class BuildMetrics(Metrics):
    """Which release and configuration it runs; the labels are `version` and `fingerprint`."""

    info: int = gauge(
        "kdist_build_info",
        "Always 1; its labels are the release's version, and the fingerprint of release, "
        "configuration and unit that the broker was started with.",
    )
