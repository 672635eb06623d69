"""A stream: what an application iterates over to get the messages of the partitions it owns.

    for message in stream:
        handle(message.topic, message.key, message.payload())

Iteration waits for more messages, and ends only when the connector is shut down. The loop adds
chunks; one thread at a time takes messages out of them, and decodes them there. Before each message
it checks that the partition is still ours: the fetched messages of one that is not are dropped.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from kdist.classic.connector.ownership import Ownership
from kdist.classic.connector.settings import ConnectorSettings
from kdist.classic.connector.subscription import STATIC, Subscription, stream_id
from kdist.client.consumer.batch import Batch, ConsumedRecord, NotDecoded
from kdist.errors import KdistError


class ConsumerTimeout(KdistError):
    """No message came for `consumer.timeout.ms`. Iteration can be started again."""


class Message(ConsumedRecord):
    """A `ConsumedRecord` under the first design's name, with `payload`."""

    __slots__ = ()

    def payload(self) -> Any:
        """The first design's name for `value`."""
        return self.value


_as_message = partial(tuple.__new__, Message)


class Chunk:
    """Batches of one partition from one poll; they are opened one by one."""

    def __init__(self, ownership: Ownership, batches: list[Batch]) -> None:
        self.ownership = ownership
        self.messages: Iterator[Message] = iter(())  # of the batch that is open
        self._end: int | None = None  # the offset behind the open batch
        self._batches = deque(batches)
        self._refusal: NotDecoded | None = None

    def open_next(self) -> bool:
        """Finish the open batch, and open the next one; False if there is none.

        Raises `NotDecoded` for a message on which a decoder fails; the message is then skipped.
        """
        if self._end is not None:
            self.ownership.finish(self._end)
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal
        if not self._batches:
            return False
        batch, rest, refusal = self._batches[0], None, None
        try:
            records = batch.records()
        except NotDecoded as refused:
            refusal, rest = refused, batch.part(refused.offset + 1, batch.end)
            batch = batch.part(batch.start, refused.offset)
            records = batch.records()
        self.messages = map(_as_message, records)
        self._end = batch.end
        # Removed last: a batch whose decoding was interrupted is the next one again.
        self._batches.popleft()
        if rest is not None:
            self._batches.appendleft(rest)
        self._refusal = refusal
        return True

    def put_back(self, message: Message) -> None:
        """Put a message back, to be the next one."""
        self.messages = chain((message,), self.messages)


class Stream:
    """An endless iterable of messages, created by a connector. `name` is its id in the registry."""

    def __init__(
        self,
        name: str,
        chunks_max: int,
        timeout_s: float | None,
        on_hungry: Callable[[Stream], None],
    ) -> None:
        self.name = name
        self._chunks_max = chunks_max
        self._timeout_s = timeout_s
        self._on_hungry = on_hungry
        self._changed = threading.Condition()  # guards the next three
        self._chunks: deque[Chunk] = deque()
        self._errors: deque[BaseException] = deque()
        self._is_stopped = False
        # Used by the iterating thread only.
        self._chunk: Chunk | None = None
        self._thread = 0
        self._giving: Iterator[Message] | None = None

    # The loop's side

    @property
    def is_full(self) -> bool:
        """Whether the stream holds as many chunks as it may."""
        return len(self._chunks) >= self._chunks_max

    def put(self, chunk: Chunk) -> None:
        """Add a chunk."""
        with self._changed:
            self._chunks.append(chunk)
            self._changed.notify()

    def look(self) -> None:
        """Called when partitions were closed, held or resumed: drop chunks of closed ones, wake the
        iterating thread.
        """
        with self._changed:
            was_full = self.is_full
            self._chunks = deque(each for each in self._chunks if each.ownership.is_open)
            self._changed.notify()
        if was_full and not self.is_full:
            self._on_hungry(self)

    def fail(self, error: BaseException) -> None:
        """Have the iteration raise an error, once."""
        with self._changed:
            if not self._errors:
                self._errors.append(error)
            self._changed.notify()

    def stop(self) -> None:
        """End the iteration."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    # The application's side

    def settle(self) -> None:
        """Count the last message as processed, if the calling thread got it from this stream."""
        if self._thread == threading.get_ident() and self._chunk is not None:
            self._chunk.ownership.settle()

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages. Raises `ConsumerTimeout`, `NotDecoded`, and brokers' errors.

        All loops and `next` share one iteration: each continues where the last one stopped.
        """
        self._thread = threading.get_ident()
        if self._giving is None:
            self._giving = self._give()
        return self._giving

    def __next__(self) -> Message:
        """The next message."""
        return next(iter(self))

    def _give(self) -> Iterator[Message]:
        try:
            while (chunk := self._next_chunk()) is not None:
                ownership = chunk.ownership
                for message in chunk.messages:
                    if not ownership.may_give:
                        chunk.put_back(message)
                        break
                    ownership.done = ownership.in_progress
                    ownership.in_progress = message
                    yield message
                else:
                    if not chunk.open_next():
                        self._chunk = None
        finally:
            self._giving = None  # an error ends this generator, but not the stream

    def _next_chunk(self) -> Chunk | None:
        """A chunk whose messages may be delivered; None once the stream was stopped."""
        with self._changed:
            if not self._changed.wait_for(self._has_news, self._timeout_s):
                raise ConsumerTimeout(f"no message came for {self._timeout_s} s")
            if self._is_stopped:
                return None
            if self._errors:
                raise self._errors.popleft()
            return self._chunk

    def _has_news(self) -> bool:
        """Under the lock: whether the iterating thread can continue."""
        if self._is_stopped or self._errors:
            return True
        while self._chunk is None or not self._chunk.ownership.is_open:
            if not self._chunks:
                self._chunk = None
                return False
            was_full = self.is_full
            self._chunk = self._chunks.popleft()
            if was_full:
                self._on_hungry(self)
        return self._chunk.ownership.may_give


class _Place(NamedTuple):
    topic: str | None  # None: any
    owner: str


class Streams:
    """The streams of a subscription, all created with it, and which of them a partition's is.

    A topic subscribed by name has its own streams; a filter's serve all topics that pass it.
    """

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
