"""The producer's own errors, beside those that brokers return (`kdist.errors.ApiError`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdist.errors import ApiError, Error, KdistError

if TYPE_CHECKING:
    from kdist.client.producer.results import SentMany


class BufferFull(KdistError):
    """`buffer_memory` stayed full for `max_block_ms`: the brokers do not keep up.

    Raised by `send_many`, it has `sent`: the future of the records that were sent before.

    >>> with Producer(bootstrap_servers=broker, max_block_ms=10_000) as producer:
    ...     try:
    ...         sent = producer.send("clicks", b"there was room")
    ...     except BufferFull:
    ...         sent = None  # drop it, or try later
    """

    sent: SentMany


class ProducerClosed(KdistError):
    """The producer was closed: it accepts no more records, or closed before delivering this one.

    >>> producer = Producer(bootstrap_servers=broker)
    >>> producer.close()
    >>> producer.send("clicks", b"late")
    Traceback (most recent call last):
    kdist.client.producer.faults.ProducerClosed: the producer is closed
    """


class DeliveryTimedOut(ApiError):
    """The record was not acknowledged within `delivery_timeout_ms`.

    It may still have been written, if a request with it was sent but not answered.

    >>> with Producer(bootstrap_servers=broker, delivery_timeout_ms=60_000) as producer:
    ...     try:
    ...         offset = producer.send("clicks", b"in time").result().offset
    ...     except DeliveryTimedOut:
    ...         offset = None
    """

    def __init__(self, detail: str) -> None:
        super().__init__(Error.REQUEST_TIMED_OUT, detail)


class RecordTooLarge(ApiError):
    """The record is larger than `max_request_size`, so no request can carry it.

    >>> with Producer(bootstrap_servers=broker, max_request_size=100) as producer:
    ...     producer.send("clicks", b"x" * 100)
    Traceback (most recent call last):
    kdist.client.producer.faults.RecordTooLarge: MESSAGE_TOO_LARGE: a record ...
    """

    def __init__(self, detail: str) -> None:
        super().__init__(Error.MESSAGE_TOO_LARGE, detail)
