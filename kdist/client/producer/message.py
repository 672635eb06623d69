"""A message to send, which has no offset yet, and hooks for those that observe or change it.

The hooks are the first design's `CallbackHandler`. A producer without one calls no hooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kdist.records.record import Headers


class Message(NamedTuple):
    """A record to send; only the value is required. `timestamp`: ms since the epoch, None for now.

    >>> Message(b"clicked", key=b"user-7")
    Message(value=b'clicked', key=b'user-7', headers=(), partition=None, timestamp=None)
    """

    value: Any
    key: Any = None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None


class CallbackHandler:
    """Override the hooks you need.

    An exception raised on the sender's thread reaches the caller of `send`; one raised on the
    producer's loop goes to the loop's exception handler, which logs it.

    >>> class Stamping(CallbackHandler):
    ...     def before_enqueue(self, topic, message):
    ...         return message._replace(headers=(*message.headers, ("source", b"web-7")))
    """

    def before_enqueue(self, topic: str, message: Message) -> Message:  # noqa: ARG002
        """Called on the sender's thread; the message it returns is enqueued instead."""
        return message

    def after_enqueue(self, topic: str, message: Message, *, was_added: bool) -> None:
        """Called on the sender's thread; `was_added` is False if enqueuing failed."""

    def after_dequeue(self, topic: str, partition: int, messages: Sequence[Message]) -> None:
        """Called on the producer's loop, when these leave the queue to be sent as one batch."""

    def last_batch_before_close(self) -> Iterable[tuple[str, Message]]:
        """Called while the producer closes: returns more messages to send, each with its topic."""
        return ()
