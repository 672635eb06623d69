"""Appends records to their partitions' open batches, on whichever thread calls.

Appending never waits for the event loop. If the topic is not known yet, or memory is full, it
returns a `Need` instead; the front waits until the need is met, in its own way, and tries again.

Owns nothing but the lock, under which threads append to open batches and the loop seals them. The
loop is woken only after the lock is released: woken earlier, it would just wait for the lock.
The most common record, a value alone for a sticky batch, takes a fast path in `Producer.send`.

What interrupts a thread that has the lock, a signal handler or a `__del__`, may call the producer
too, and must not wait for the lock, as the thread goes on only afterwards. So the lock is
reentrant, and who has a batch in hand has `take`n it. Such a caller may thus put records into other
batches; whatever changes more than a batch is left to the loop (`NeedTurn`, `deferred`).
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
from kdist.client.producer.arguments import TIMESTAMP_END
from kdist.client.producer.batch import (
    RECORD_OVERHEAD_BYTES,
    TIMESTAMP_BYTES,
    Column,
    PartitionQueue,
    ProducerBatch,
)
from kdist.client.producer.faults import ProducerClosed, RecordTooLarge
from kdist.client.producer.results import Sent
from kdist.client.producer.settings import ProducerSettings
from kdist.client.producer.topic import LEADERLESS, Topic
from kdist.errors import ApiError, Error, UserError
from kdist.records.batch import HEADER_SIZE
from kdist.records.codec import pack_headers
from kdist.records.record import Headers, HeadersRow
from kdist.runtime.clock import Clock

_FIRST_LIMIT_BYTES = 16 << 10  # reserved for a new batch; grows by `_GROWTH` each time it is full
_GROWTH = 4
_OVERHEAD = RECORD_OVERHEAD_BYTES
NOW_S = -math.inf  # a deadline that precedes any look the loop has scheduled
_NOWHERE = Topic("")  # stands for a topic that is not known


class Memory:
    """`buffer_memory`: how much of it batches hold, and the callers that wait for some to be freed.

    Any thread takes from it, under the accumulator's lock.

    Only the loop gives back, without the lock, as that adds to a counter of its own. Waiting is
    done on the loop, too.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._taken = 0
        self._given_back = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def free(self) -> int:
        return self.size - self._taken + self._given_back

    @property
    def is_wanted(self) -> bool:
        """Whether a caller waits for memory; batches do not linger then."""
        return bool(self._waiting)

    def take(self, size: int) -> bool:
        """Take `size` bytes if they are free; False if not.

        A record larger than the whole budget may be taken once all of it is free.
        """
        free = self.free
        if size > free and (size <= self.size or free < self.size):
            return False
        self._taken += size
        return True

    def give_back(self, size: int) -> None:
        self._given_back += size

    async def wait(self, size: int) -> None:
        """Wait until so much may be free. Callers are served in the order in which they came."""
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (min(size, self.size), came)
        self._waiting.append(entry)
        try:
            self.wake()
            await came
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def wake(self) -> None:
        """Wake the callers for which there is enough.

        They are woken once a quarter of the budget is free, not just one record's worth: a woken
        thread can then run for a while, instead of contending with the loop for the interpreter
        lock after each record.
        """
        left = self.free
        while self._waiting:
            size, came = self._waiting[0]
            if left < max(size, self.size // 4):
                return
            left -= size
            self._waiting.popleft()
            if not came.done():
                came.set_result(None)


class NeedTopic(NamedTuple):
    """Metadata for the topic, or for this partition of it, is missing."""

    topic: str
    partition: int | None = None


class NeedRoom(NamedTuple):
    """`buffer_memory` does not have this many bytes free."""

    size_bytes: int


class NeedTurn(NamedTuple):
    """The caller interrupts another call of its thread, which has to go on first."""


Need = NeedTopic | NeedRoom | NeedTurn


class Row(NamedTuple):
    """A record to be sent, encoded."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int | None


def _add_more(batch: ProducerBatch, headers: Any, timestamp: Any, room_bytes: int) -> int | None:
    """Append a record's headers and timestamp to the batch's columns; returns their size in bytes.

    None if one of them is unusual, lacks its column in the batch, or does not fit into the room.
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
        timestamps.append(batch.now_ms if timestamp is None else timestamp)
    return size


class Accumulator:
    """See above. `kick`, called from any thread, asks the sender to look for due batches.

    Its argument is the time by which it should look, on the loop's clock.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        partitioner: Partitioner | str,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        rng: random.Random,
        kick: Callable[[float], None],
    ) -> None:
        self.lock = threading.RLock()
        self.topics: dict[str, Topic] = {}
        self.plain: dict[str, ProducerBatch] = {}  # open, sticky, and of values alone, by topic
        self.active: dict[PartitionQueue, None] = {}
        self.memory = Memory(settings.buffer_memory)
        self.shut: frozenset[int] = LEADERLESS  # brokers that cannot be sent to now
        self.has_sealed = False  # since the asyncio front last let the loop run
        self.is_closed = False
        self._why_closed = "the producer is closed"
        self.has_short_way = True
        self.is_watched = False  # a callback handler sees batches, so headers stay unpacked
        self.record_bytes_max = settings.max_request_size
        # At most the size of a request, so that whatever fits into an open batch can be sent.
        self.batch_bytes = max(1, min(settings.batch_size, self.record_bytes_max - HEADER_SIZE))
        self._linger_s = settings.linger_ms / 1000
        self._partitioner = partitioner
        self.is_sticky = partitioner == "sticky"
        self._now_s = loop.time
        self._clock = clock
        self._rng = rng
        self._kick = kick
        self._untold: deque[float] = deque()  # deadlines that the loop has not been told of yet

    @property
    def is_inside(self) -> bool:
        """Whether the caller interrupts a call of its own thread that has the lock."""
        # As `threading.Condition` asks its lock.
        is_owned: bool = self.lock._is_owned()  # type: ignore[attr-defined]
        return is_owned

    def check_waiter(self) -> None:
        """Raise `UserError` if what the caller is about to wait for could never come."""
        if self.is_inside:
            raise UserError(
                "this interrupts a `send` of the same producer, as a signal handler or `__del__` "
                "may, and cannot wait for what that has yet to finish"
            )

    # One record

    def add(self, name: str, row: Row, partition: int | None) -> Sent | Need:
        """The record's future, or the `Need` to meet first.

        `ApiError` for a wrong partition from the partitioner, `RecordTooLarge`, `ProducerClosed`.
        """
        value, key, headers, timestamp = row
        if value is not None and not (headers and self.is_watched):
            sent = self.add_quick(name, value, key, partition, headers or None, timestamp)
            if sent is not None:
                return sent
        size = self._size(row)
        if self.is_inside:
            return NeedTurn()
        place = partition
        topic = self.topics.get(name)
        if partition is None and callable(self._partitioner) and topic is not None:
            # Before the lock is taken, as it is the application's, and may send something itself.
            place = self._ask_partitioner(topic, key)
        try:
            with self.lock:
                self.check_open()
                while True:
                    queue = self.queue(name, key, place)
                    if isinstance(queue, NeedTopic):
                        return NeedTopic(name, partition)
                    batch = self._batch(queue, size)
                    if isinstance(batch, NeedRoom):
                        return batch
                    if batch is not None:
                        break
                size += batch.take()
                index = len(batch.values)
                batch.add(*row)
                self.maybe_make_plain(name, batch)  # before it has room for what interrupts this
                batch.size_bytes = size
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
        """The fast path of `add`; None if anything about the record or its batch is uncommon.

        Arguments typed `Any` are not validated, only compared with the common case.
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
            before = batch.size_bytes
            size = before + len(value) + _OVERHEAD
            if key is not None:
                size += len(key)
            limit = batch.limit_bytes
            if size > limit:
                return None
            batch.size_bytes = limit  # as `batch.take` does
            values = batch.values
            sent = Sent(batch, len(values))  # first: an interrupt in it must not part the columns
            if headers is not rows or timestamp is not timestamps:  # then one of them is not None
                more = _add_more(batch, headers, timestamp, limit - size)
                if more is None:
                    batch.size_bytes = before
                    return None
                size += more
            if keys is not None:
                keys.append(key)
            values.append(value)
            batch.size_bytes = size
            return sent

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
        """Raise `ProducerClosed` if the producer is closed. To add records, call under the lock."""
        if self.is_closed:
            raise ProducerClosed(self._why_closed)

    def abandon(self, why: str) -> None:
        """In a forked process: accept no more, and leave the parent's records to the parent.

        The lock is replaced, as a thread of the parent may have held the old one.
        """
        self.lock = threading.RLock()
        self.is_closed = True
        self._why_closed = why
        self.plain.clear()
        for queue in [each for topic in self.topics.values() for each in topic.every]:
            for batch in queue.batches():
                batch.error, batch.is_done = ProducerClosed(why), True  # nobody here will tell
        self.topics.clear()

    def maybe_make_plain(self, name: str, batch: ProducerBatch) -> None:
        """Offer the batch to the fast path if it qualifies, else withdraw it."""
        if not batch.is_plain:
            if self.plain.get(name) is batch:
                del self.plain[name]
        elif self.has_short_way and self.topics[name].sticky is batch.queue:
            self.plain[name] = batch

    # Where to

    def queue(
        self, name: str, key: bytes | None, partition: int | None
    ) -> PartitionQueue | NeedTopic:
        """The partition that a record goes to, as its queue. Call under the lock."""
        topic = self.topics.get(name)
        if topic is None or not topic.queues:
            return NeedTopic(name)
        if partition is not None:
            if not 0 <= partition < len(topic.queues):
                return NeedTopic(name, partition)
            return topic.queues[partition]
        if callable(self._partitioner):
            return NeedTopic(name)  # it could not be asked before the topic was known
        if key is not None:
            return topic.queues[partition_for(key, len(topic.queues))]
        if not self.is_sticky:
            return topic.in_turn(self.shut)
        sticky = topic.sticky
        if sticky is None or (sticky.open is None and sticky.leader in self.shut):
            return topic.stick(self._rng, self.shut)
        return sticky

    def shrink(self, topic: Topic, count: int) -> None:
        """Have the topic no more than its first `count` partitions, as it was recreated so."""
        with self.lock:
            topic.queues = topic.every[:count]
            if topic.sticky not in topic.queues:
                topic.sticky = None
                self.plain.pop(topic.name, None)

    def forget(self, topic: Topic) -> bool:
        """Drop a topic, unless a record has just been sent to it; returns whether it is dropped."""
        with self.lock:
            if topic.is_busy:
                return False
            self.plain.pop(topic.name, None)
            del self.topics[topic.name]
            for queue in topic.every:
                self.active.pop(queue, None)
            return True

    def move_on(self, queue: PartitionQueue) -> None:
        """Have records without a key leave a partition that cannot be sent to, for one that can."""
        topic = self.topics[queue.topic]
        if topic.sticky is not queue:
            return
        with self.lock:
            if topic.sticky is queue and topic.can_leave(self.shut):
                self.plain.pop(queue.topic, None)
                topic.stick(self._rng, self.shut)

    def partitions(self, topic: Topic, keys: Column) -> Sequence[int | None]:
        """The partition for each of these keys, in a known topic; None for any partition."""
        if callable(self._partitioner):
            return [self._ask_partitioner(topic, key) for key in keys]
        places = partitions_for(keys, len(topic.queues))
        if self.is_sticky:
            return places
        return [topic.in_turn(self.shut).partition if each is None else each for each in places]

    def _ask_partitioner(self, topic: Topic, key: bytes | None) -> int | None:
        """The application's choice; None while the topic has no partitions. Not under the lock."""
        assert callable(self._partitioner), "it is the application's"
        count = len(topic.queues)
        if not count:
            return None
        chosen = self._partitioner(key, count)
        if type(chosen) is not int or not 0 <= chosen < count:
            raise ApiError(
                Error.UNKNOWN_TOPIC_OR_PARTITION,
                f"the partitioner chose {chosen!r} for {topic.name}, which has {count}",
            )
        return chosen

    def _batch(self, queue: PartitionQueue, size: int) -> ProducerBatch | NeedRoom | None:
        """The open batch, with room for `size` more bytes; None if it was full and is now sealed.

        The caller then chooses the partition again: a sticky one may have changed.
        """
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

    def mark_time(self, late_s: float) -> bool:
        """Tell each batch opened before then what time it is; returns whether any batch is open.

        So that a record's time is right to some ms without a look at the clock for each.
        """
        now_ms = self._clock.now_ms()
        is_any_open = False
        for queue in tuple(self.active):
            batch = queue.open
            if batch is not None:
                is_any_open = True
                if batch.created_s <= late_s:
                    batch.mark(now_ms)
        return is_any_open

    def grow(self, batch: ProducerBatch, limit_bytes: int) -> bool:
        """Raise the batch's limit to so many bytes; False if there is no memory for that."""
        more = limit_bytes - batch.limit_bytes
        if more > 0:
            if not self.memory.take(more):
                return False
            batch.held_bytes += more
            batch.limit_bytes = limit_bytes
        return True

    def open(self, queue: PartitionQueue, size: int) -> ProducerBatch | NeedRoom:
        """A new batch with room for `size` bytes."""
        limit = max(size, min(self.batch_bytes, _FIRST_LIMIT_BYTES))
        if not self.memory.take(limit):
            return NeedRoom(limit)
        batch = ProducerBatch(queue, queue.take_number(), self._now_s(), self._clock.now_ms())
        batch.limit_bytes = batch.held_bytes = limit
        due_s = NOW_S if self.memory.is_wanted else batch.created_s + self._linger_s
        # Active first: if this thread is interrupted here, no batch is left where nobody looks.
        self.active[queue] = None
        queue.open = batch
        self._untold.append(due_s)
        return batch

    def seal(self, queue: PartitionQueue, *, is_known: bool = False) -> None:
        """Close the open batch to further records. Call under the lock.

        `is_known` says that the loop does this itself, and needs no kick.
        """
        batch = queue.open
        assert batch is not None, "only an open batch is sealed"
        topic = self.topics[queue.topic]
        if topic.sticky is queue:
            self.plain.pop(queue.topic, None)  # first: what interrupts this must not find it
        queue.open = None
        queue.waiting.append(batch)
        if topic.sticky is queue:
            topic.stick(self._rng, self.shut)
        if not is_known:
            self.has_sealed = True
            self._untold.append(NOW_S)

    def tell(self) -> None:
        """Kick the loop for what was opened or sealed. Call after releasing the lock."""
        while self._untold:
            try:
                when_s = self._untold.popleft()
            except IndexError:
                return  # another thread tells it
            self._kick(when_s)
