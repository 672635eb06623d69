"""The consumer's own errors of its life; those of what it reads are beside the code that reads."""

from __future__ import annotations

from kdist.errors import KdistError, UserError


class ConsumerClosed(UserError):
    """The consumer was closed: it no longer reads or commits."""

    def __init__(self) -> None:
        super().__init__("the consumer is closed")


class WakenUp(KdistError):
    """`wakeup` was called, which interrupted this poll."""
