"""All streams of one connector, and which of them delivers the messages of a partition.

A topic subscribed by name has its own streams; a filter's streams serve all topics that pass it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kdist.classic.connector.ownership import Ownership
from kdist.classic.connector.settings import ConnectorSettings
from kdist.classic.connector.stream import Stream
from kdist.classic.connector.subscription import STATIC, Subscription, stream_id


class _Place(NamedTuple):
    topic: str | None  # None: any
    owner: str


class Streams:
    """The streams of a subscription, all created with it."""

    def __init__(
        self,
        consumer: str,
        subscription: Subscription,
        settings: ConnectorSettings,
        on_hungry: Callable[[Stream], None],
    ) -> None:
        timeout_ms = settings.consumer_timeout_ms
        timeout_s = None if timeout_ms < 0 else timeout_ms / 1000
        self._is_shared = subscription.pattern != STATIC
        self._streams: dict[_Place, Stream] = {}
        for topic, count in subscription.counts.items():
            for number in range(count):
                name = stream_id(consumer, number)
                place = _Place(None if self._is_shared else topic, name)
                chunks_max = settings.queued_chunks_max
                self._streams[place] = Stream(name, chunks_max, timeout_s, on_hungry)
        self._names = {place.owner for place in self._streams}

    def has(self, owner: str) -> bool:
        """Whether `owner` names one of our streams."""
        return owner in self._names

    def of(self, ownership: Ownership) -> Stream:
        """The stream that delivers the messages of an owned partition."""
        topic = None if self._is_shared else ownership.partition.topic
        return self._streams[_Place(topic, ownership.owner)]

    def by_topic(self, topic: str | None) -> list[Stream]:
        """The streams of a topic, or with None those of the filter."""
        return [stream for place, stream in self._streams.items() if place.topic == topic]

    def look(self) -> None:
        """See `Stream.look`."""
        for stream in self._streams.values():
            stream.look()

    def fail(self, error: BaseException) -> None:
        """See `Stream.fail`."""
        for stream in self._streams.values():
            stream.fail(error)

    def settle(self) -> None:
        """See `Stream.settle`."""
        for stream in self._streams.values():
            stream.settle()

    def stop(self) -> None:
        for stream in self._streams.values():
            stream.stop()
