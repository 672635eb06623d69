"""The futures that `send` and `send_many` return: they resolve to offsets, or to an error.

A `Sent` is a batch and an index in it, and looks up its outcome there when asked, so creating one
costs no more than the object. Waiting for one has its batch sent without further linger.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, NamedTuple, Self, TypeVar

from kdist.client.operation import check_timeout
from kdist.client.producer.batch import ProducerBatch
from kdist.errors import WrongType
from kdist.model import NO_OFFSET, OffsetRange

T = TypeVar("T")


class RecordMetadata(NamedTuple):
    """Where a record was written.

    `offset` is -1 with acks=0, or where a retry was answered as a duplicate without an offset.
    `timestamp` is in ms: the broker's under LogAppendTime, else the one given to `send`, else that
    of the call, which is right to some ms.

    >>> RecordMetadata("clicks", partition=0, offset=7, timestamp=1795190382741).offset
    7
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class _Promise(Generic[T]):
    """A future that waits, in a thread or on an event loop, for batches to be done."""

    __slots__ = ()

    def _batches(self) -> Iterable[ProducerBatch]:
        raise NotImplementedError

    def _error(self) -> BaseException | None:
        raise NotImplementedError

    def _found(self) -> T:
        raise NotImplementedError

    def _get(self) -> T:
        error = self._error()
        if error is not None:
            raise error.with_traceback(None)  # a batch's futures share it: each adds its own
        return self._found()

    def __repr__(self) -> str:
        outcome = (self._error() or self._found()) if self.done() else "not acknowledged yet"
        return f"<{type(self).__name__}: {outcome}>"

    def done(self) -> bool:
        """Whether the outcome is known."""
        return all(batch.is_done for batch in self._batches())

    def result(self, timeout: float | None = None) -> T:
        """The outcome, waiting for it for up to `timeout` seconds (None: no limit).

        Raises the delivery error if the send failed, `TimeoutError` if the outcome is not known in
        time. `UserError` where waiting would never end: in the producer's own callbacks, and on the
        event loop of a `kdist.aio` producer.
        """
        self._wait(timeout)
        return self._get()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The delivery error, or None if there was none; waits as `result` does."""
        self._wait(timeout)
        return self._error()

    def _wait(self, timeout: float | None) -> None:
        check_timeout(timeout, "timeout")
        if not self.done():
            if timeout is None or timeout > 0:
                next(iter(self._batches())).queue.check_waiter()
            # A lock used as a one-shot event: `threading.Event` takes two locks and about twenty
            # Python calls.
            waiting = threading.Lock()
            waiting.acquire()
            self._when_done(waiting.release)
            is_long = timeout is None or timeout > threading.TIMEOUT_MAX
            if not waiting.acquire(timeout=-1 if is_long else max(timeout or 0, 0)):
                raise TimeoutError("not acknowledged yet")

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call `callback` with this future once the outcome is known; at once if it is already.

        It runs on the producer's event loop, so it should be quick: nothing is sent meanwhile.
        """
        if not callable(callback):
            raise WrongType(f"callback must be a callable, not {callback!r}")
        self._when_done(partial(callback, self), is_urgent=False)

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done():
            loop = asyncio.get_running_loop()
            known: asyncio.Future[None] = loop.create_future()
            self._when_done(partial(loop.call_soon_threadsafe, make_known, known))
            yield from known
        return self._get()

    def _when_done(self, callback: Callable[[], object], *, is_urgent: bool = True) -> None:
        """Call `callback` when the last of the batches is done."""
        left = list(self._batches())

        def next_done() -> None:
            while left:
                batch = left.pop()
                if not batch.is_done:
                    batch.when_done(next_done)
                    return
            callback()

        if is_urgent:
            for batch in left:
                if not batch.is_done:
                    batch.queue.hurry(batch)
        next_done()


def make_known(known: asyncio.Future[None]) -> None:
    """Resolve a waiter's future, unless the waiter was cancelled."""
    if not known.done():
        known.set_result(None)


@contextmanager
def telling(sent: SentMany) -> Iterator[SentMany]:
    """Whatever is raised in this context has `sent`, the future of what was sent before."""
    try:
        yield sent
    except BaseException as error:
        error.sent = sent  # type: ignore[attr-defined] # of any class, such as KeyboardInterrupt
        raise


class Sent(_Promise[RecordMetadata]):
    """The future of one record.

    >>> with Producer(bootstrap_servers=broker) as producer:
    ...     sent = producer.send("clicks", b"e")
    ...     sent.add_done_callback(lambda each: print("at", each.result().topic))
    at clicks
    >>> sent.done(), sent.exception()
    (True, None)
    """

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: ProducerBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def _batches(self) -> Iterable[ProducerBatch]:
        batch = self._batch
        if not batch.parts:
            return (batch,)
        return (batch.find(self._index)[0],)

    def done(self) -> bool:
        batch = self._batch
        return batch.is_done and (not batch.parts or batch.find(self._index)[0].is_done)

    def _error(self) -> BaseException | None:
        return self._batch.find(self._index)[0].error

    def _found(self) -> RecordMetadata:
        batch, index = self._batch.find(self._index)
        queue = batch.queue
        timestamp = batch.timestamp_ms
        if batch.timestamps is not None:
            timestamp = batch.timestamps[index]
        offset = batch.base_offset
        if offset != NO_OFFSET:
            offset += index
        return RecordMetadata(queue.topic, queue.partition, offset, timestamp)


def resolve_stand_in(stand_in: ProducerBatch, sent: Sent) -> None:
    """Have whoever waits for the stand-in's only record wait for this one. Called on the loop."""
    batch = sent._batch
    stand_in.parts = ((-sent._index, batch),)
    if stand_in.is_hurried:
        batch.queue.hurry(batch)
    batch.when_done(stand_in.finish)


class SentMany(_Promise[dict[int, list[OffsetRange]]]):
    """The future of all records of one call; its result is their offset ranges by partition.

    Within a partition, records keep the order of the call. If any record fails, the future fails
    with the first error; `failures` lists them all.

    >>> with Producer(bootstrap_servers=broker, max_request_size=1000) as producer:
    ...     many = producer.send_many("clicks", [b"f", b"x" * 2000, b"g"])
    >>> [(partition, count) for partition, count, error in many.failures()]
    [(0, 1)]
    """

    __slots__ = ("count", "pieces")

    def __init__(self) -> None:
        self.count = 0
        self.pieces: list[tuple[ProducerBatch, int, int]] = []  # records from start up to end

    def add(self, batch: ProducerBatch, start: int, end: int) -> None:
        """Note that a batch holds some of the call's records, from index `start` up to `end`."""
        if start == end:
            return
        self.count += end - start
        last = self.pieces[-1] if self.pieces else None
        if last is not None and last[0] is batch and last[2] == start:
            self.pieces[-1] = batch, last[1], end
        else:
            self.pieces.append((batch, start, end))

    def add_one(self, sent: Sent) -> None:
        """Add a record that was sent on its own."""
        self.add(sent._batch, sent._index, sent._index + 1)

    def _resolved(self) -> Iterable[tuple[ProducerBatch, int, int]]:
        """The pieces, in the batches that hold them now."""
        for whole, start, end in self.pieces:
            at = start
            while at < end:
                batch, first = whole.find(at)
                count = batch.count or len(batch.values)
                taken = end - at if batch is whole else min(end - at, count - first)
                yield batch, first, first + taken
                at += taken

    def _batches(self) -> Iterable[ProducerBatch]:
        if all(not batch.parts for batch, _, _ in self.pieces):
            return [batch for batch, _, _ in self.pieces]
        return [batch for batch, _, _ in self._resolved()]

    def failures(self) -> list[tuple[int, int, BaseException]]:
        """For each batch that has failed so far: partition, number of records, error."""
        return [
            (batch.queue.partition, end - start, batch.error)
            for batch, start, end in self._resolved()
            if batch.error is not None
        ]

    def delayed_by(self) -> BaseException | None:
        """The error for which a batch is sent again, if any has had one."""
        waiting = (batch for batch, _, _ in self._resolved() if not batch.is_done)
        return next((batch.error for batch in waiting if batch.error), None)

    def _error(self) -> BaseException | None:
        return next((batch.error for batch, _, _ in self._resolved() if batch.error), None)

    def _found(self) -> dict[int, list[OffsetRange]]:
        ranges: dict[int, list[OffsetRange]] = {}
        for batch, start, end in self._resolved():
            found = ranges.setdefault(batch.queue.partition, [])
            if batch.base_offset == NO_OFFSET:
                continue
            new = OffsetRange(batch.base_offset + start, batch.base_offset + end)
            if found and found[-1].end == new.start:
                found[-1] = OffsetRange(found[-1].start, new.end)
            else:
                found.append(new)
        return ranges
