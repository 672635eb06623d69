"""Metrics of the clients: connections, requests, what a producer sends and a consumer reads.

`metrics_text` shows them with the label `client_id`; `metrics` leaves it out.
"""

from __future__ import annotations

from typing import NamedTuple

from kdist.metrics.declare import (
    Family,
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
class ClientBrokerMetrics(Metrics):
    """A client's connections to one broker; the family's label is `broker` (host:port)."""

    PREFIX = "kdist_client_"

    open_connections: int = gauge("Connections open now.")
    failed_connections: int = counter("Times that the broker could not be connected to.")
    lost_connections: int = counter("Connections that ended before the client closed them.")
    requests_in_flight: int = gauge("Requests that wait for their answers.")
    throttled_seconds: float = counter(
        "For how long the broker told the client to pause, since it had used up a quota."
    )


@metrics
class ClientRequestMetrics(Metrics):
    """A client's requests of one API to one broker; the family's labels are `broker` and `api`."""

    PREFIX = "kdist_client_request_"

    failed: int = counter(
        "Requests that got no answer: it came too late, or the connection ended.",
        name="kdist_client_requests_failed_total",
    )
    seconds: Histogram = histogram(
        "From sending a request to its answer. A fetch may wait at the broker for"
        " fetch_max_wait_ms, a JoinGroup for other members."
    )


class ConnectionFamilies(NamedTuple):
    """What the connections of one client count in."""

    brokers: Family[ClientBrokerMetrics]
    requests: Family[ClientRequestMetrics]

    @classmethod
    def empty(cls) -> ConnectionFamilies:
        return cls(
            Family(ClientBrokerMetrics, "broker"), Family(ClientRequestMetrics, "broker", "api")
        )


@metrics
class ProducerMetrics(Metrics):
    """One producer."""

    PREFIX = "kdist_producer_"

    buffer_available_bytes: Reading = reading("What is free of buffer_memory.")
    buffer_exhausted: int = counter("Times that `send` raised BufferFull.")
    delivery_seconds: Histogram = histogram(
        "From a batch's first record to its acknowledgement, linger and retries included."
    )


@metrics
class ProducerTopicMetrics(Metrics):
    """What one producer sends to one topic; the family's label is `topic`."""

    PREFIX = "kdist_producer_"

    records_sent: int = counter("Records acknowledged; with acks=0, records sent.")
    batches_sent: int = counter("Batches acknowledged; with acks=0, batches sent.")
    bytes_sent: int = counter("Bytes of these batches, compressed as they are.")
    record_retries: int = counter("Records in batches that were queued to be sent again.")
    record_errors: int = counter("Records that failed: each one's future has the error.")


@metrics
class ConsumerMetrics(Metrics):
    """One consumer."""

    PREFIX = "kdist_consumer_"

    assigned_partitions: Reading = reading("Partitions assigned.")
    last_poll_seconds: Reading = reading(
        "How long ago the application last polled; NaN without a group."
    )
    rebalances: int = counter("Rebalances of the group that this member has completed.")
    lost_partitions: int = counter(
        "Partitions that others may have read while this member had them, as the group went on"
        " without it."
    )
    refused_commits: int = counter(
        "Commits of which the coordinator refused some offset; some are sent again."
    )


@metrics
class ConsumerTopicMetrics(Metrics):
    """What one consumer reads of one topic; the family's label is `topic`."""

    PREFIX = "kdist_consumer_"

    records_consumed: int = counter(
        "Records that were handed to the application, counted with the last of their batch."
    )
    bytes_consumed: int = counter("Bytes of these batches, compressed as they are.")


@metrics
class ConsumerPartitionMetrics(Metrics):
    """One partition that is assigned; the family's labels are `topic` and `partition`."""

    PREFIX = "kdist_consumer_"

    lag_records: float = gauge(
        "Records between the position and the end that the last fetch told of; NaN before one."
    )
