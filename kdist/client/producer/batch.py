"""A batch of records for one partition, from its first record to its acknowledgement.

    open -- full, due or waited for --> sealed -- a request takes it --> in flight --> done
                                          ^------ retried ----------------'

While it is open, any thread appends to it under the accumulator's lock. Once it is sealed, only the
loop touches it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kdist.client.producer.message import Message
from kdist.model import NO_OFFSET, NO_SEQUENCE
from kdist.records.record import Headers

if TYPE_CHECKING:
    from kdist.client.producer.queue import PartitionQueue

RECORD_OVERHEAD_BYTES = 16  # at most: a record's lengths and deltas, without its timestamp delta
TIMESTAMP_BYTES = 9  # at most: the timestamp delta of a record that has its own timestamp

Column = list[bytes | None]


class Batch:
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
        self.timestamp_ms = timestamp_ms  # for records without a timestamp of their own
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
        self.parts: Sequence[tuple[int, Batch]] = ()  # after a split: first index, batch
        self.whole: Batch | None = None  # the batch that this one was split from
        self.callbacks: deque[Callable[[], object]] = deque()

    @property
    def is_plain(self) -> bool:
        """Whether its records have values and nothing else."""
        return self.keys is None and self.headers is None and self.timestamps is None

    def add(
        self, value: bytes | None, key: bytes | None, headers: Headers, timestamp: int | None
    ) -> None:
        """Append a record; the caller has checked that there is room."""
        count = len(self.values)
        if key is not None and self.keys is None:
            self.keys = [None] * count
        if headers and self.headers is None:
            self.headers = [()] * count
        if timestamp is not None and self.timestamps is None:
            self.timestamps = [self.timestamp_ms] * count
        if self.keys is not None:
            self.keys.append(key)
        if self.headers is not None:
            self.headers.append(headers)
        if self.timestamps is not None:
            self.timestamps.append(self.timestamp_ms if timestamp is None else timestamp)
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
            self.timestamps += [self.timestamp_ms] * len(values)
        if count:
            self.values += values
        else:
            self.values = values

    def messages(self) -> Iterator[Message]:
        """Its records, before it is encoded."""
        for index, value in enumerate(self.values):
            yield Message(
                value,
                None if self.keys is None else self.keys[index],
                () if self.headers is None else self.headers[index],
                self.queue.partition,
                self.timestamp_ms if self.timestamps is None else self.timestamps[index],
            )

    def find(self, index: int) -> tuple[Batch, int]:
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
