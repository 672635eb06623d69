"""Metrics of the network: connections, and the bytes sent and received on them."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, counter, gauge, metrics


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
    held_connections: int = counter(
        "Times that reading from a connection was paused until the peer read its responses."
    )
    received_bytes: int = counter("Bytes received on all connections.")
    sent_bytes: int = counter("Bytes sent on all connections.")
