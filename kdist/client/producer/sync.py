"""The blocking producer: it runs its event loop in a background thread."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Self, TypeVar, Unpack

from kdist.client.background import FORKED, BackgroundLoop
from kdist.client.foreign import OtherNames, understanding
from kdist.client.metrics import Measured
from kdist.client.operation import check_timeout
from kdist.client.producer.arguments import checked_partition
from kdist.client.producer.batch import RECORD_OVERHEAD_BYTES
from kdist.client.producer.core import Core, ProducerContext, Steps
from kdist.client.producer.faults import BufferFull
from kdist.client.producer.message import Message
from kdist.client.producer.results import Sent, SentMany, telling
from kdist.client.producer.settings import ProducerKeywords, read_settings
from kdist.client.settings import Servers
from kdist.errors import UserError
from kdist.records.record import Headers

T = TypeVar("T")


class Producer(Measured, OtherNames):
    """Sends records to topics. Threads may share one; `close` it, or use it in a `with` block.

    Settings have the names of Kafka's producer settings in snake case; `ProducerSettings` and
    `Callables` list them. A setting that is unknown or invalid raises `UserError`.

    >>> with Producer(bootstrap_servers=broker) as producer:
    ...     sent = producer.send("clicks", b"hello", key=b"user-7")
    ...     sent.result(timeout=10).offset
    0
    """

    @understanding
    def __init__(
        self, bootstrap_servers: Servers = (), **settings: Unpack[ProducerKeywords]
    ) -> None:
        config = read_settings({"bootstrap_servers": bootstrap_servers, **settings})
        self._background = BackgroundLoop(f"{config.plain.client_id}-loop")
        try:
            context = ProducerContext.of(self._background.loop)
            self._core = self._background.run(Core.open(context, config))
        except BaseException:
            self._background.stop()
            raise
        self._accumulator = self._core.accumulator
        self._meter = self._core.meter
        self._has_short_way = self._accumulator.has_short_way
        self._lock = self._accumulator.lock
        self._plain_batch = self._accumulator.plain.get
        self._background.on_fork = partial(_abandon, weakref.ref(self))
        self._background.warn_if_left(self)
        self._is_closing = False
        self._begun: Future[None] | None = None  # a close that could not wait for its end

    def _abandon(self) -> None:
        self._accumulator.abandon(FORKED)
        self._lock = self._accumulator.lock

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Sent:
        """Queue a record for sending, and return its future.

        The key determines the partition unless `partition` is given; `timestamp` is in ms since the
        epoch, None for now. The call blocks for up to `max_block_ms` while `buffer_memory` is full,
        then raises `BufferFull`, or while the topic's metadata is missing, then `ApiError` or
        `NoBroker`. It also raises `ApiError` for a partition that does not exist, `RecordTooLarge`,
        `ProducerClosed`, and `WrongType` for an argument of the wrong type, such as a `str` value.

        >>> with Producer(bootstrap_servers=broker) as producer:
        ...     sent = [producer.send("clicks", page, key=b"user-7") for page in (b"a", b"b")]
        ...     [each.result(timeout=10).offset for each in sent]
        [1, 2]
        """
        if type(value) is bytes:
            # The fast path: a value alone, while the topic's sticky batch has room. It is inlined
            # because one more function call would add a tenth to its time.
            if key is None and partition is None and headers is None and timestamp is None:
                with self._lock:
                    batch = self._plain_batch(topic)
                    if batch is not None:
                        size = batch.size_bytes + len(value) + RECORD_OVERHEAD_BYTES
                        limit = batch.limit_bytes
                        if size <= limit:
                            batch.size_bytes = limit  # as `batch.take` does
                            values = batch.values
                            sent = Sent(batch, len(values))
                            values.append(value)
                            batch.size_bytes = size
                            return sent
            if self._has_short_way and (key is None or type(key) is bytes):
                quick = self._accumulator.add_quick(
                    topic, value, key, partition, headers, timestamp
                )
                if quick is not None:
                    return quick
        core = self._core
        if core.has_handler:
            message = Message(value, key, headers or (), partition, timestamp)
            return self._drive(core.add(topic, message))
        row = core.row(topic, value, key, headers, timestamp)
        partition = checked_partition(partition)
        added = self._accumulator.add(topic, row, partition)
        if isinstance(added, Sent):
            return added
        return self._drive(core.add_row(topic, row, partition))

    @understanding
    def send_many(
        self, topic: str, values: Iterable[Any], keys: Iterable[Any] | None = None
    ) -> SentMany:
        """Queue many records for sending, far faster than one by one; returns one future for all.

        The future's result is, by partition, the ranges of their offsets. Raises what `send`
        raises, except that a record that is too large fails the future while the others are sent.
        Whatever it raises has an attribute `sent`: the future of those that were sent before.

        >>> with Producer(bootstrap_servers=broker) as producer:
        ...     many = producer.send_many("clicks", [b"a", b"b", b"c"])
        ...     many.result(timeout=10)
        {0: [OffsetRange(start=3, end=6)]}
        """
        with telling(SentMany()) as sent:
            return self._drive(self._core.add_many(topic, values, keys, sent))

    def _drive(self, steps: Steps[T]) -> T:
        """Run the steps to their end, blocking for each `Need` they yield."""
        until_s = None
        try:
            while True:
                need = next(steps)
                if self._background.is_here:
                    raise BufferFull("a callback of the producer cannot wait for it")
                if until_s is None:
                    until_s = self._core.patience_s()
                self._background.run(self._core.meet(need, until_s))
        except StopIteration as last:
            result: T = last.value
            return result
        finally:
            steps.close()  # so that a handler's `after_enqueue` is told if there was no room

    @understanding
    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until each record sent so far is acknowledged or has failed.

        Raises `TimeoutError` after `timeout_s` seconds, and no delivery error: each record's own
        future has that. `UserError` where it would wait for itself: in a callback, and in a signal
        handler or `__del__` that interrupts this producer in the middle of a `send`.
        """
        check_timeout(timeout_s)
        if self._core.is_closed or self._background.is_elsewhere:
            return
        self._accumulator.check_waiter()
        try:
            self._background.run(self._core.flush(timeout_s))
        except UserError:
            if not self._core.is_closed:  # by another thread, which has let no record unsettled
                raise

    @understanding
    def close(self, timeout_s: float | None = None) -> None:
        """Deliver what was sent, for up to `timeout_s` seconds (None: no limit), then shut down.

        Records still undelivered then fail with `ProducerClosed`. Those for a topic that was
        deleted fail once it is missing for 10 seconds. A second call does nothing. In a signal
        handler or `__del__` that interrupts this producer in the middle of a `send`, the call only
        begins to close: the next one, such as that of `with`, waits for the end.
        """
        check_timeout(timeout_s)
        if self._is_closing or self._background.is_elsewhere:
            return  # or the program has ended, and with it what could be sent
        self._background.check_caller()
        if self._accumulator.is_inside:
            if self._begun is None:
                work = self._core.close(timeout_s)
                self._begun = asyncio.run_coroutine_threadsafe(work, self._background.loop)
            return
        self._is_closing = True
        try:
            self._background.run(self._core.close(timeout_s))
            if self._begun is not None:
                self._begun.result()
        finally:
            self._background.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _abandon(producer: weakref.ref[Producer]) -> None:
    """Called in a forked process. The loop holds it, so it must not keep the producer alive."""
    here = producer()
    if here is not None:
        here._abandon()
