"""Metrics of the broker: requests by API, and the state of the process as a whole."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, Reading, counter, gauge, histogram, metrics, reading
from kdist.metrics.histogram import Histogram


@metrics
class RequestMetrics(Metrics):
    """The requests of one API; the family's label is its name."""

    PREFIX = "kdist_request_"

    answered: int = counter("Requests answered.", name="kdist_requests_total")
    failed: int = counter(
        "Requests answered with an error for the whole of them.", name="kdist_requests_failed_total"
    )
    crashed: int = counter(
        "Requests that met a bug; each cost its connection.", name="kdist_requests_crashed_total"
    )
    seconds: Histogram = histogram("From a request's arrival to its response, waits included.")


@metrics
class BrokerMetrics(Metrics):
    """One broker."""

    PREFIX = "kdist_broker_"

    is_ready: int = gauge("1 while the broker serves clients.", name="kdist_broker_ready")
    loop_lag_seconds: Histogram = histogram("How late the event loop calls its timers.")
    loop_longest_turn_seconds: Reading = reading(
        "The longest that the event loop went on without turning to its timers and connections, in"
        " the last two minutes."
    )
    has_session: Reading = reading(
        "1 while its ZooKeeper session is connected.", name="kdist_broker_zookeeper_connected"
    )
    expired_sessions: int = counter("ZooKeeper sessions of the broker that expired.")
    created_topics: int = counter(
        "Topics created because a client asked for them.",
        name="kdist_broker_auto_created_topics_total",
    )


@metrics
class BuildMetrics(Metrics):
    """What it runs; the labels are `version`, `release`, `settings` and `unit`."""

    info: int = gauge(
        "Always 1; its labels are the release's version and digest, and the digests of the settings"
        " and the unit that the broker was started with.",
        name="kdist_build_info",
    )
