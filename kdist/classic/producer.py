"""The first design's producer: `send` takes a `MessageSet` as well as a record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

from kdist.client.producer.message import Message
from kdist.client.producer.results import Sent, SentMany, telling
from kdist.client.producer.sync import Producer as Modern
from kdist.errors import WrongType
from kdist.records.record import Headers


class MessageSet(list[Message]):
    """Messages to send with one call; an item that is not a `Message` is taken as a value.

    >>> MessageSet([b"clicked", Message(b"scrolled", key=b"user-7")])[0].value
    b'clicked'
    """

    def __init__(self, messages: Iterable[Any] = ()) -> None:
        super().__init__(each if isinstance(each, Message) else Message(each) for each in messages)


class Producer(Modern):
    """`kdist.Producer`, whose `send` also takes a `MessageSet`."""

    @overload
    def send(self, topic: str, value: MessageSet) -> SentMany: ...

    @overload
    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Sent: ...

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Sent | SentMany:
        """As `kdist.Producer.send`; for a `MessageSet` returns one future for all of it.

        >>> with Producer(bootstrap_servers=broker) as producer:
        ...     many = producer.send("clicks", MessageSet([b"a", Message(b"b", key=b"user-7")]))
        ...     sum(range.end - range.start for each in many.result(10).values() for range in each)
        2
        """
        if not isinstance(value, MessageSet):
            return super().send(topic, value, key, headers, partition, timestamp)
        if any(each is not None for each in (key, headers, partition, timestamp)):
            raise WrongType("key, headers, partition and timestamp are those of each Message")
        # Made anew, as values may have been put into the list since.
        with telling(SentMany()) as sent:
            return self._drive(self._core.add_each(topic, MessageSet(value), sent))
