"""Records into the batches of their partitions, on whichever thread they come.

What can be done at once is: no record waits for the loop. If a topic is not known yet, or memory is
used up, a `Need` is given back instead; the front waits for it in its own way and tries again.

Owner of nothing but the lock: under it, threads add to open batches and the loop seals them. Which
of them it should look at it is told behind the lock: woken up before, it would only wait for that.
The usual record, a value alone for a sticky batch, takes a shorter way (`Producer.send`).
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kdist.client.partitioner import Partitioner, partition_for, partitions_for
from kdist.client.producer.batch import (
    RECORD_OVERHEAD_BYTES,
    TIMESTAMP_BYTES,
    Batch,
    Column,
)
from kdist.client.producer.faults import ProducerClosed, RecordTooLarge
from kdist.client.producer.given import TIMESTAMP_END
from kdist.client.producer.memory import Memory
from kdist.client.producer.queue import PartitionQueue
from kdist.client.producer.results import Sent
from kdist.client.producer.settings import ProducerSettings
from kdist.client.producer.topics import Topic
from kdist.errors import ApiError, Error
from kdist.records.batch import HEADER_SIZE
from kdist.records.codec import pack_headers
from kdist.records.record import Headers, HeadersRow
from kdist.runtime.clock import Clock

_FIRST_LIMIT_BYTES = 16 << 10  # reserved for a new batch; then four times as much, and so on
_GROWTH = 4
_OVERHEAD = RECORD_OVERHEAD_BYTES
NOW_S = -math.inf  # by when the loop is to look: before it looks anyway
_NOWHERE = Topic("")  # instead of one that is not known


class NeedTopic(NamedTuple):
    """The topic, or this partition of it, is not known."""

    topic: str
    partition: int | None = None


class NeedRoom(NamedTuple):
    """So much of `buffer_memory` is not free."""

    size_bytes: int


Need = NeedTopic | NeedRoom


class Row(NamedTuple):
    """A record to be sent, encoded."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int | None


def _add_more(batch: Batch, headers: Any, timestamp: Any, room_bytes: int) -> int | None:
    """Put what a record has beside key and value into its columns; their size.

    None if they are not usual, not there yet, or larger than the room.
    """
    rows, timestamps = batch.headers, batch.timestamps
    row: HeadersRow | None = () if headers is None else pack_headers(headers)
    if row is None:
        return None
    size = len(row)
    if timestamp is not None:
        if timestamps is None or type(timestamp) is not int or not 0 <= timestamp < TIMESTAMP_END:
            return None
        size += TIMESTAMP_BYTES
    if size > room_bytes or (rows is None and headers):
        return None
    if rows is not None:
        rows.append(row)
    if timestamps is not None:
        timestamps.append(batch.timestamp_ms if timestamp is None else timestamp)
    return size


class Accumulator:
    """See above. `kick` asks the loop to look at what there is to send; from any thread.

    It is given the time by which, on the loop's clock.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        partitioner: Partitioner | str,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        chance: random.Random,
        kick: Callable[[float], None],
    ) -> None:
        self.lock = threading.Lock()
        self.topics: dict[str, Topic] = {}
        self.plain: dict[str, Batch] = {}  # open, sticky, and of values alone, by topic
        self.active: dict[PartitionQueue, None] = {}
        self.memory = Memory(settings.buffer_memory)
        self.is_closed = False
        self._why_closed = "the producer is closed"
        self.has_short_way = True
        self.is_watched = False  # somebody is to see records as they were given
        self.record_bytes_max = settings.max_request_size
        # No more than a request: so whatever fits into a batch that is open may be sent.
        self.batch_bytes = max(1, min(settings.batch_size, self.record_bytes_max - HEADER_SIZE))
        self._linger_s = settings.linger_ms / 1000
        self._partitioner = partitioner
        self.is_sticky = partitioner == "sticky"
        self._now_s = loop.time
        self._clock = clock
        self._chance = chance
        self._kick = kick
        self._untold: deque[float] = deque()  # by when the loop is to look, and was not told

    # One record

    def add(self, name: str, row: Row, partition: int | None) -> Sent | Need:
        """The record's future, or what it takes first. `ApiError`: wrong partition, too large."""
        value, key, headers, timestamp = row
        if value is not None and not (headers and self.is_watched):
            sent = self.add_quick(name, value, key, partition, headers or None, timestamp)
            if sent is not None:
                return sent
        size = self._size(row)
        try:
            with self.lock:
                self.check_open()
                while True:
                    queue = self.queue(name, row.key, partition)
                    if isinstance(queue, NeedTopic):
                        return queue
                    batch = self._batch(queue, size)
                    if isinstance(batch, NeedRoom):
                        return batch
                    if batch is not None:
                        break
                index = len(batch.values)
                batch.add(*row)
                batch.size_bytes += size
                self.maybe_make_plain(name, batch)
                return Sent(batch, index)
        finally:
            self.tell()

    def add_quick(
        self,
        name: str,
        value: bytes,
        key: bytes | None,
        partition: Any,
        headers: Any = None,
        timestamp: Any = None,
    ) -> Sent | None:
        """As `add`, of the usual record; None if anything about it or its batch is not usual.

        An argument that is `Any` is checked only for being the usual one.
        """
        with self.lock:
            topic = self.topics.get(name, _NOWHERE)
            queues = topic.queues
            if type(partition) is int:
                queue = queues[partition] if 0 <= partition < len(queues) else None
            elif partition is not None or not self.is_sticky:
                return None
            elif key is None:
                queue = topic.sticky
            else:
                queue = queues[partition_for(key, len(queues))] if queues else None
            batch = None if queue is None else queue.open
            if batch is None or (key is not None and batch.keys is None):
                return None
            keys, rows, timestamps = batch.keys, batch.headers, batch.timestamps
            size = batch.size_bytes + len(value) + _OVERHEAD
            if key is not None:
                size += len(key)
            if headers is not rows or timestamp is not timestamps:  # then one of them is not None
                more = _add_more(batch, headers, timestamp, batch.limit_bytes - size)
                if more is None:
                    return None
                size += more
            elif size > batch.limit_bytes:
                return None
            batch.size_bytes = size
            if keys is not None:
                keys.append(key)
            values = batch.values
            values.append(value)
            return Sent(batch, len(values) - 1)

    def _size(self, row: Row) -> int:
        value, key, headers, timestamp = row
        size = _OVERHEAD + len(value or b"") + len(key or b"")
        if timestamp is not None:
            size += TIMESTAMP_BYTES
        for name, data in headers:
            size += len(name if name.isascii() else name.encode()) + len(data or b"") + 6
        if size + HEADER_SIZE > self.record_bytes_max:
            raise RecordTooLarge(
                f"a record of {size} bytes is larger than max_request_size, "
                f"{self.record_bytes_max} bytes"
            )
        return size

    def check_open(self) -> None:
        """`ProducerClosed` if it is not. Who adds then asks under the lock."""
        if self.is_closed:
            raise ProducerClosed(self._why_closed)

    def abandon(self, why: str) -> None:
        """Take no more, and leave what there is: it is another process's, by whom it is locked."""
        self.lock = threading.Lock()
        self.is_closed = True
        self._why_closed = why
        self.plain.clear()
        self.topics.clear()

    def maybe_make_plain(self, name: str, batch: Batch) -> None:
        """Let the short way find the batch, or find it no more."""
        if not batch.is_plain:
            if self.plain.get(name) is batch:
                del self.plain[name]
        elif self.has_short_way and self.topics[name].sticky is batch.queue:
            self.plain[name] = batch

    # Where to

    def queue(
        self, name: str, key: bytes | None, partition: int | None
    ) -> PartitionQueue | NeedTopic:
        """Where a record goes. Under the lock."""
        topic = self.topics.get(name)
        if topic is None or not topic.queues:
            return NeedTopic(name)
        count = len(topic.queues)
        if partition is None:
            if key is None and self.is_sticky:
                return topic.sticky or topic.stick(self._chance)
            partition = self._choose(topic, key, count)
        if not 0 <= partition < count:
            return NeedTopic(name, partition)
        return topic.queues[partition]

    def partitions(self, name: str, keys: Column) -> Sequence[int | None]:
        """Where records of these keys go, in a topic that is known; None for any."""
        topic = self.topics[name]
        count = len(topic.queues)
        if self.is_sticky:
            return partitions_for(keys, count)
        return [self._choose(topic, key, count) for key in keys]

    def _choose(self, topic: Topic, key: bytes | None, count: int) -> int:
        partitioner = self._partitioner
        if callable(partitioner):
            chosen = partitioner(key, count)
            if type(chosen) is not int or not 0 <= chosen < count:
                raise ApiError(
                    Error.UNKNOWN_TOPIC_OR_PARTITION,
                    f"the partitioner chose {chosen!r} for {topic.name}, which has {count}",
                )
            return chosen
        if key is not None:
            return partition_for(key, count)
        topic.turn += 1
        return topic.turn % count

    def _batch(self, queue: PartitionQueue, size: int) -> Batch | NeedRoom | None:
        """The open batch, with room for `size` bytes more. None: it was full, choose again."""
        batch = queue.open
        if batch is None:
            return self.open(queue, size)
        wanted = batch.size_bytes + size
        if wanted <= batch.limit_bytes:
            return batch
        if wanted > self.batch_bytes:
            self.seal(queue)
            return None
        limit = min(self.batch_bytes, max(wanted, batch.limit_bytes * _GROWTH))
        return batch if self.grow(batch, limit) else NeedRoom(size)

    def grow(self, batch: Batch, limit_bytes: int) -> bool:
        """Whether the batch may have so many bytes now."""
        more = limit_bytes - batch.limit_bytes
        if more > 0:
            if not self.memory.take(more):
                return False
            batch.held_bytes += more
            batch.limit_bytes = limit_bytes
        return True

    def open(self, queue: PartitionQueue, size: int) -> Batch | NeedRoom:
        """A new batch with room for `size` bytes."""
        limit = max(size, min(self.batch_bytes, _FIRST_LIMIT_BYTES))
        if not self.memory.take(limit):
            return NeedRoom(limit)
        batch = Batch(queue, queue.take_number(), self._now_s(), self._clock.now_ms())
        batch.limit_bytes = batch.held_bytes = limit
        self.active[queue] = None  # first: interrupted here, no batch is where nobody looks
        queue.open = batch
        self._untold.append(NOW_S if self.memory.is_wanted else batch.created_s + self._linger_s)
        return batch

    def seal(self, queue: PartitionQueue, *, is_known: bool = False) -> None:
        """The open batch takes no more; `is_known` to the loop. Under the lock."""
        batch = queue.open
        assert batch is not None, "only an open batch is sealed"
        queue.open = None
        queue.waiting.append(batch)
        topic = self.topics[queue.topic]
        if topic.sticky is queue:
            self.plain.pop(queue.topic, None)
            topic.stick(self._chance)
        if not is_known:
            self._untold.append(NOW_S)

    def tell(self) -> None:
        """Kick for what was opened or sealed. For whoever held the lock, once it is free."""
        while self._untold:
            try:
                when_s = self._untold.popleft()
            except IndexError:
                return  # another thread tells it
            self._kick(when_s)
