"""What goes wrong in a producer, beyond the brokers' own errors (`kdist.errors.ApiError`)."""

from __future__ import annotations

from kdist.errors import ApiError, Error, KdistError


class BufferFull(KdistError):
    """`buffer_memory` was in use for all of `max_block_ms`: the brokers do not keep up, or away."""


class ProducerClosed(KdistError):
    """The producer was closed: it takes no more, and did not deliver this."""


class DeliveryTimedOut(ApiError):
    """The record was not acknowledged within `delivery_timeout_ms`.

    It may have been written nevertheless, if its last attempt was under way.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(Error.REQUEST_TIMED_OUT, detail)


class RecordTooLarge(ApiError):
    """A record that no request could carry: larger than `max_request_size`."""

    def __init__(self, detail: str) -> None:
        super().__init__(Error.MESSAGE_TOO_LARGE, detail)
