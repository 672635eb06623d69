"""The stages of the producer's queue, for an application that wants to watch or change it.

The first design's `CallbackHandler`. Without one, sending asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kdist.client.producer.message import Message


class CallbackHandler:
    """Override what is of interest. What is raised here reaches whoever sends, or the loop's log.

    >>> class Stamping(CallbackHandler):
    ...     def before_enqueue(self, topic, message):
    ...         return message._replace(headers=(*message.headers, ("source", b"web-7")))
    """

    def before_enqueue(self, topic: str, message: Message) -> Message:  # noqa: ARG002
        """On the sender's thread: the message that is to be enqueued instead."""
        return message

    def after_enqueue(self, topic: str, message: Message, *, was_added: bool) -> None:
        """On the sender's thread, once it is in the queue, or is not since that was full."""

    def after_dequeue(self, topic: str, partition: int, messages: Sequence[Message]) -> None:
        """On the producer's loop: these leave the queue, and go out as one batch."""

    def last_batch_before_close(self) -> Iterable[tuple[str, Message]]:
        """While the producer closes: what else to send, with the topic of each."""
        return ()
