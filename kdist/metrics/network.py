"""Metrics of the network: connections, and the bytes sent and received on them."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, counter, gauge, metrics


@metrics
class NetworkMetrics(Metrics):
    """All connections that clients and other brokers opened to one broker."""

    open_connections: int = gauge("kdist_network_open_connections", "Connections open now.")
    accepted_connections: int = counter(
        "kdist_network_accepted_connections_total", "Connections accepted and served."
    )
    refused_connections: int = counter(
        "kdist_network_refused_connections_total",
        "Connections refused because of max.connections or max.connections.per.ip.",
    )
    idle_connections: int = counter(
        "kdist_network_idle_connections_total",
        "Connections closed because they were idle for connections.max.idle.ms.",
    )
    failed_connections: int = counter(
        "kdist_network_failed_connections_total",
        "Connections closed because the peer violated the protocol.",
    )
    paused_connections: int = counter(
        "kdist_network_held_connections_total",
        "Times that reading from a connection was paused until the peer read its responses.",
    )
    received_bytes: int = counter(
        "kdist_network_received_bytes_total", "Bytes received on all connections."
    )
    sent_bytes: int = counter("kdist_network_sent_bytes_total", "Bytes sent on all connections.")
