"""What one fetch returned for one partition: messages with their offsets, decoded lazily (pure).

A fetch returns whole batches, and the first may begin before the requested offset: messages before
it are skipped, and so are control records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kdist.client.consumer.opening import Opening, open_fetched
from kdist.errors import ApiError
from kdist.model import TopicPartition
from kdist.records.record import HeaderPairs, Record
from kdist.wire.primitives import Buffer


class Message(NamedTuple):
    """A message. `timestamp` is ms since the epoch, -1 for none; `key` and `value` may be None."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: HeaderPairs = ()

    def payload(self) -> bytes | None:
        """The first design's name for `value`."""
        return self.value


class MessageAndOffset(NamedTuple):
    """A message and its offset."""

    message: Message
    offset: int

    @property
    def next_offset(self) -> int:
        """The offset at which to fetch the message after this one."""
        return self.offset + 1


class FetchedSet:
    """The messages of one fetch, in order: an iterable of `MessageAndOffset`.

    `error` is the broker's error, if there was one; iteration raises it. `high_watermark` is the
    offset behind the last message that consumers may read.
    """

    def __init__(
        self,
        partition: TopicPartition,
        offset: int,
        buffer: Buffer = b"",
        high_watermark: int = -1,
        error: ApiError | None = None,
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.high_watermark = high_watermark
        self.error = error
        self._buffer = buffer

    @property
    def size_bytes(self) -> int:
        """How many bytes the broker sent."""
        return len(self._buffer)

    @property
    def next_offset(self) -> int:
        """The offset at which to fetch what follows this set; raises `error`."""
        self.raise_error()
        found = self.offset
        for ready in open_fetched(self._buffer, self._opening(check_crcs=False)):
            found = max(found, ready.next_offset)
        return found

    def raise_error(self) -> None:
        """Raise `error`, if there is one."""
        if self.error is not None:
            raise self.error

    def __iter__(self) -> Iterator[MessageAndOffset]:
        """Yields the messages; raises `CorruptRecords` where the broker sent corrupt data."""
        self.raise_error()
        for ready in open_fetched(self._buffer, self._opening()):
            if ready.error is not None:
                raise ready.error
            if ready.batch is not None:
                yield from map(_with_offset, ready.batch.raw_records())

    def _opening(self, *, check_crcs: bool = True) -> Opening:
        return Opening(self.partition, self.offset, check_crcs=check_crcs)


def _with_offset(record: Record) -> MessageAndOffset:
    message = Message(record.key, record.value, record.timestamp, record.headers)
    return MessageAndOffset(message, record.offset)
