"""A partition's batches: each from its first record to its acknowledgement, and all in order.

    open -- full, due or waited for --> sealed -- a request takes it --> in flight --> done
                                          ^------ retried ----------------'

While it is open, any thread appends to it under the accumulator's lock. Once it is sealed, only the
loop touches it.

A batch gets its sequence number when it is first sent and keeps it on every retry, so a broker
writes it once. After an error that leaves a gap in the sequence the queue is *stale*: it waits
until nothing is in flight, then starts again at 0 under a newer epoch (KIP-360). After a batch has
to be retried, the queue is *recovering*: only one batch at a time is in flight, so that the batches
behind it keep their order, even without idempotence.

A batch that expires in flight is done, but in flight until its request ends: it may be written yet,
so that nothing is numbered anew before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Any

from kdist.client.producer.identity import NOBODY, Identity
from kdist.client.producer.message import Message
from kdist.model import NO_OFFSET, NO_SEQUENCE
from kdist.records.record import Headers

SEQUENCE_MASK = 0x7FFF_FFFF
RECORD_OVERHEAD_BYTES = 16  # at most: a record's lengths and deltas, without its timestamp delta
TIMESTAMP_BYTES = 9  # at most: the timestamp delta of a record that has its own timestamp

Column = list[bytes | None]


class ProducerBatch:
    """Columns of records, then one frame of bytes, then an offset or an error."""

    __slots__ = (
        "attempts",
        "base_offset",
        "callbacks",
        "count",
        "created_s",
        "error",
        "frame",
        "headers",
        "held_bytes",
        "is_done",
        "is_hurried",
        "keys",
        "limit_bytes",
        "marks",
        "now_ms",
        "number",
        "parts",
        "prefix_size",
        "queue",
        "sequence",
        "size_bytes",
        "timestamp_ms",
        "timestamps",
        "values",
        "whole",
    )

    def __init__(
        self, queue: PartitionQueue, number: int, created_s: float, timestamp_ms: int
    ) -> None:
        self.queue = queue
        self.number = number  # its place among the partition's batches
        self.created_s = created_s
        self.timestamp_ms = timestamp_ms  # when it was opened
        # For records without a timestamp of their own: the time, and from which index on it counts.
        self.now_ms = timestamp_ms
        self.marks: list[tuple[int, int]] = []
        # The records' columns, while the batch is open. A column that no record uses is None.
        self.values: Column = []
        self.keys: Column | None = None
        self.headers: list[Any] | None = None  # `HeadersRow`; packed only without a handler
        self.timestamps: list[int] | None = None
        self.size_bytes = 0  # an upper bound on the records' encoded size
        self.limit_bytes = 0  # up to where records may be added
        self.held_bytes = 0  # of `buffer_memory`, until the batch is done
        self.is_hurried = False  # a caller waits for it, so it does not linger
        # For the request.
        self.count = 0
        self.frame: bytearray | None = None
        self.prefix_size = 0
        self.sequence = NO_SEQUENCE
        self.attempts = 0
        # From the answer.
        self.is_done = False
        self.base_offset = NO_OFFSET
        self.error: BaseException | None = None
        self.parts: Sequence[tuple[int, ProducerBatch]] = ()  # after a split: first index, batch
        self.whole: ProducerBatch | None = None  # the batch that this one was split from
        self.callbacks: deque[Callable[[], object]] = deque()

    @property
    def is_plain(self) -> bool:
        """Whether its records have values and nothing else."""
        return self.keys is None and self.headers is None and self.timestamps is None

    def take(self) -> int:
        """Have nobody else find room in it until `size_bytes` is set again; returns that size.

        The lock keeps other threads away, but not what interrupts this one. If an error interrupts
        it, the batch stays full until the next record makes it grow.
        """
        size, self.size_bytes = self.size_bytes, self.limit_bytes
        return size

    def add(
        self, value: bytes | None, key: bytes | None, headers: Headers, timestamp: int | None
    ) -> None:
        """Append a record; the caller has checked that there is room, and has taken the batch."""
        count = len(self.values)
        if key is not None and self.keys is None:
            self.keys = [None] * count
        if headers and self.headers is None:
            self.headers = [()] * count
        if timestamp is not None and self.timestamps is None:
            self.timestamps = self.stamps()
        if self.keys is not None:
            self.keys.append(key)
        if self.headers is not None:
            self.headers.append(headers)
        if self.timestamps is not None:
            self.timestamps.append(self.now_ms if timestamp is None else timestamp)
        self.values.append(value)

    def extend(self, values: Column, keys: Column | None) -> None:
        """Append records that have only values, and keys if given."""
        count = len(self.values)
        if keys is not None and self.keys is None:
            self.keys = [None] * count
        if self.keys is not None:
            self.keys += [None] * len(values) if keys is None else keys
        if self.headers is not None:
            self.headers += [()] * len(values)
        if self.timestamps is not None:
            self.timestamps += [self.now_ms] * len(values)
        if count:
            self.values += values
        else:
            self.values = values

    def messages(self) -> Iterator[Message]:
        """Its records, before it is encoded."""
        timestamps = self.stamps() if self.timestamps is None else self.timestamps
        for index, value in enumerate(self.values):
            yield Message(
                value,
                None if self.keys is None else self.keys[index],
                () if self.headers is None else self.headers[index],
                self.queue.partition,
                timestamps[index],
            )

    def mark(self, now_ms: int) -> None:
        """Note the time. On the loop, without the lock: a record added just now may be older."""
        count = len(self.values)
        self.now_ms = now_ms
        if self.marks and self.marks[-1][0] == count:
            self.marks[-1] = count, now_ms
        else:
            self.marks.append((count, now_ms))

    def stamps(self) -> list[int]:
        """The time at which each record was added, for a batch without a column of timestamps."""
        stamps: list[int] = []
        time_ms = self.timestamp_ms
        for start, later_ms in self.marks:
            stamps += [time_ms] * (start - len(stamps))
            time_ms = later_ms
        return stamps + [time_ms] * (len(self.values) - len(stamps))

    def find(self, index: int) -> tuple[ProducerBatch, int]:
        """The batch that holds the record after any splits, and the record's index in it."""
        batch = self
        while batch.parts:
            first, batch = next(each for each in reversed(batch.parts) if each[0] <= index)
            index -= first
        return batch, index

    # Waiting

    def when_done(self, callback: Callable[[], object]) -> None:
        """Have `callback` called on the loop once the batch is done; here and now if it is.

        May be called from any thread.
        """
        self.callbacks.append(callback)
        if self.is_done:
            self.call_back()

    def finish(self) -> None:
        """Note that the outcome is known, and call the waiting callbacks."""
        self.is_done = True
        self.call_back()

    def call_back(self) -> None:
        """Call the waiting callbacks, up to the first that raises."""
        for each in iter(self._take_callback, None):
            each()

    def _take_callback(self) -> Callable[[], object] | None:
        """The next callback, if any. Threads may race here; each callback is taken once."""
        try:
            return self.callbacks.popleft()
        except IndexError:
            return None


class PartitionQueue:
    """Owner: the loop, except for `open` and `take_number`, which the accumulator's lock guards."""

    __slots__ = (
        "_in_flight_to",
        "_next_sequence",
        "check_waiter",
        "hurry",
        "identity",
        "in_flight",
        "is_recovering",
        "is_stale",
        "last_number",
        "leader",
        "open",
        "partition",
        "prefix",
        "retry_at_s",
        "topic",
        "waiting",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        leader: int,
        hurry: Callable[[ProducerBatch], None],
        check_waiter: Callable[[], None] = lambda: None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.leader = leader
        self.hurry = hurry
        self.check_waiter = check_waiter
        self.open: ProducerBatch | None = None
        self.waiting: deque[ProducerBatch] = deque()  # sealed, in order
        self.in_flight: list[ProducerBatch] = []  # in flight, in order
        self.retry_at_s = 0.0
        self.is_recovering = False
        self.is_stale = False
        self.identity = NOBODY
        self.prefix: tuple[int, bytes] = (-1, b"")  # a request's version, and its encoded start
        self.last_number = 0
        self._next_sequence = 0
        self._in_flight_to = leader  # the leader that the batches in flight were sent to

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def take_number(self) -> int:
        self.last_number += 1
        return self.last_number

    def batches(self) -> Iterable[ProducerBatch]:
        """All batches that are not done. From any thread, while the loop goes on."""
        yield from (*self.in_flight, *self.waiting)
        if self.open is not None:
            yield self.open

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send and nothing in flight."""
        return self.open is None and not self.waiting and not self.in_flight

    @property
    def in_flight_since_s(self) -> float:
        """When the oldest batch in flight was opened that has not expired; infinite if none."""
        for batch in self.in_flight:
            if not batch.is_done:
                return batch.created_s
        return inf

    @property
    def may_send(self) -> bool:
        """Whether another batch can be sent now without breaking order or numbering."""
        if not self.in_flight:
            return True
        # A new leader would write this batch before those in flight to the old one.
        return not (self.is_recovering or self.is_stale) and self.leader == self._in_flight_to

    @property
    def has_sent(self) -> bool:
        """Whether a batch that is not done was sent at least once, and so may have been written."""
        return bool(self.in_flight) or any(batch.attempts for batch in self.waiting)

    # Sending

    def mark_in_flight(self, batch: ProducerBatch) -> None:
        """Note that the batch is now in flight; the caller has taken it from `waiting`."""
        self.in_flight.append(batch)
        self._in_flight_to = self.leader

    def number(self, batch: ProducerBatch) -> bool:
        """Give the batch its sequence number; False if it already has one."""
        if batch.sequence != NO_SEQUENCE:
            return False
        batch.sequence = self._next_sequence
        self._next_sequence = self._next_sequence + batch.count & SEQUENCE_MASK
        return True

    def begin_anew(self, identity: Identity) -> None:
        """Number the waiting batches from 0 under a new identity. Nothing may be in flight."""
        assert not self.in_flight, "a batch in flight already has its sequence number"
        self.identity = identity
        self.is_stale = False
        self._next_sequence = 0
        for batch in self.waiting:
            batch.sequence = NO_SEQUENCE

    # Answers

    def mark_answered(self, batch: ProducerBatch) -> None:
        """Note that the batch is no longer in flight."""
        self.in_flight.remove(batch)
        if not self.in_flight and not self._has_returned():
            self.is_recovering = False

    def _has_returned(self) -> bool:
        return bool(self.waiting) and self.waiting[0].attempts > 0

    def is_first(self, batch: ProducerBatch) -> bool:
        """Whether every earlier batch is done."""
        return not any(
            each.number < batch.number for each in (*self.in_flight, *_first(self.waiting))
        )

    def put_back(self, batch: ProducerBatch) -> None:
        """Queue the batch to be sent again, in its place."""
        place = 0
        while place < len(self.waiting) and self.waiting[place].number < batch.number:
            place += 1
        self.waiting.insert(place, batch)
        self.is_recovering = True

    def put_back_parts(self, parts: Iterable[ProducerBatch]) -> None:
        """Queue the parts of a split batch, which share its number, in its place."""
        for part in reversed(list(parts)):
            self.put_back(part)


def _first(batches: deque[ProducerBatch]) -> Iterable[ProducerBatch]:
    return (batches[0],) if batches else ()
