"""Metrics of the broker: requests by API, quotas, connections, the state of the process."""

from __future__ import annotations

from kdist.metrics.declare import (
    Histogram,
    Metrics,
    Reading,
    counter,
    gauge,
    histogram,
    metrics,
    reading,
)


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


@metrics
class NetworkMetrics(Metrics):
    """All connections that clients and other brokers opened to one broker."""

    PREFIX = "kdist_network_"

    open_connections: int = gauge("Connections open now.")
    accepted_connections: int = counter("Connections accepted and served.")
    refused_connections: int = counter(
        "Connections refused because of max.connections or max.connections.per.ip."
    )
    idle_connections: int = counter(
        "Connections closed because they were idle for connections.max.idle.ms."
    )
    failed_connections: int = counter("Connections closed because the peer violated the protocol.")
    failed_handshakes: int = counter("Connections that ended in their TLS handshake.")
    held_connections: int = counter(
        "Times that reading from a connection was paused until the peer read its responses."
    )
    unauthenticated_connections: int = gauge(
        "Connections open now whose peers have not proved yet who they are."
    )
    unauthenticated_ended_connections: int = counter(
        "Connections closed because a proof took too long, or for newer ones without proof."
    )
    received_bytes: int = counter("Bytes received on all connections.")
    sent_bytes: int = counter("Bytes sent on all connections.")


@metrics
class AuthorizationMetrics(Metrics):
    """What was refused for want of a right. The labels are `operation` and `resource`, its type."""

    PREFIX = "kdist_authorization_"

    denials: int = counter(
        "Times that a request lacked a right; with authorizer.dry.run it was served all the same."
    )


@metrics
class TlsMetrics(Metrics):
    """The certificates of one listener; the label is its name."""

    PREFIX = "kdist_tls_"

    certificate_seconds: Reading = reading("How long its certificate is valid yet.")
    authority_seconds: Reading = reading(
        "How long the first of the CAs is valid yet that it trusts, or that its chain has."
    )
    refused: int = gauge(
        "1 while a changed certificate cannot be used, and the old one stays.",
        name="kdist_tls_change_refused",
    )


@metrics
class AuthenticationMetrics(Metrics):
    """Proofs of who clients and brokers are, by SASL; the labels are `listener` and `mechanism`.

    `mechanism` is `none` for a peer that failed before it named one.
    """

    PREFIX = "kdist_authentication_"

    succeeded: int = counter("Connections whose peers proved who they are.")
    failed: int = counter("Proofs that failed; each cost its connection.")
    renewed: int = counter("Sessions that were renewed on their connections before their end.")
    expired: int = counter("Connections closed because their sessions ended.")


@metrics
class QuotaMetrics(Metrics):
    """One quota, as it was set. The labels are `user`, `client` and `quota` (`produce`, `fetch`,
    `request`).

    `user` or `client` is empty where the quota names none, and `<default>` for all that have none
    of their own; `client` is `<others>` for those beyond the first 200.
    """

    PREFIX = "kdist_quota_"

    limit: float = gauge(
        "What the quota allows a client each second: bytes, or seconds of the broker's thread; 0 "
        "for <others>."
    )
    used: float = counter("What was used of it: bytes, or seconds of the broker's thread.")
    throttled: int = counter(
        "Requests after which the client was held back.",
        name="kdist_quota_throttled_requests_total",
    )
    throttled_seconds: float = counter(
        "For how long clients were told to pause, over all their connections."
    )


@metrics
class AclMetrics(Metrics):
    """The ACLs by which one broker decides, if it has an authorizer."""

    PREFIX = "kdist_acl_"

    patterns: Reading = reading("Names and prefixes that have ACLs.")
    unreadable: Reading = reading(
        "Names and prefixes that are closed to all but super users, as their ACLs cannot be read."
    )
    are_current: Reading = reading(
        "1 while changes of ACLs are followed; 0 while ZooKeeper is away or could not be read, so "
        "that those that were read last stay in force.",
        name="kdist_acl_current",
    )
