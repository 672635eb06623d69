"""The producer for programs without an event loop: it has one in a thread of its own."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any, Self, TypeVar, overload

from kdist.client.background import FORKED, BackgroundLoop
from kdist.client.producer.batch import RECORD_OVERHEAD_BYTES
from kdist.client.producer.core import Core, Steps
from kdist.client.producer.faults import BufferFull
from kdist.client.producer.given import check_timeout, checked_partition
from kdist.client.producer.message import Message, MessageSet
from kdist.client.producer.results import Sent, SentMany
from kdist.client.producer.settings import read_settings
from kdist.client.producer.world import World
from kdist.client.shared_settings import Servers
from kdist.records.record import Headers

T = TypeVar("T")


class Producer:
    """Sends records to topics. Threads may share one; close it in the end.

    Settings are Kafka's producer's in snake case, as `ProducerSettings` and `Callables` have them;
    `UserError` for one that is wrong.

    >>> with Producer(bootstrap_servers=broker) as producer:
    ...     sent = producer.send("clicks", b"hello", key=b"user-7")
    ...     sent.result(timeout=10).offset
    0
    """

    def __init__(self, bootstrap_servers: Servers = (), **settings: Any) -> None:
        config = read_settings({"bootstrap_servers": bootstrap_servers, **settings})
        self._background = BackgroundLoop(f"{config.plain.client_id}-loop")
        try:
            world = World.of(self._background.loop)
            self._core = self._background.run(Core.open(world, config))
        except BaseException:
            self._background.stop()
            raise
        self._accumulator = self._core.accumulator
        self._has_short_way = self._accumulator.has_short_way
        self._lock = self._accumulator.lock
        self._plain = self._accumulator.plain
        self._background.on_fork = partial(_abandon, weakref.ref(self))
        self._background.warn_if_left(self)
        self._is_closing = False

    def _abandon(self) -> None:
        self._accumulator.abandon(FORKED)
        self._lock = self._accumulator.lock

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
        """Put a record on its way; its future. Blocks while memory is used up (`BufferFull`).

        A key decides the partition, unless `partition` does; `timestamp` is in ms since the epoch,
        None for now. Also raises `RecordTooLarge`, `ProducerClosed`, `TypeError` for what is not
        bytes, `ApiError` for a topic or partition that is not there. A `MessageSet` goes with one
        call.

        >>> with Producer(bootstrap_servers=broker) as producer:
        ...     many = producer.send("clicks", MessageSet([b"a", Message(b"b", key=b"user-7")]))
        ...     sum(range.end - range.start for each in many.result(10).values() for range in each)
        2
        """
        if type(value) is bytes:
            # The usual record: a value alone, while the topic has a sticky batch with room. Written
            # out here, as a call more would be a tenth of its time.
            if key is None and partition is None and headers is None and timestamp is None:
                with self._lock:
                    batch = self._plain.get(topic)
                    if batch is not None:
                        size = batch.size_bytes + len(value) + RECORD_OVERHEAD_BYTES
                        if size <= batch.limit_bytes:
                            batch.size_bytes = size
                            values = batch.values
                            values.append(value)
                            return Sent(batch, len(values) - 1)
            if self._has_short_way and (key is None or type(key) is bytes):
                sent = self._accumulator.add_quick(topic, value, key, partition, headers, timestamp)
                if sent is not None:
                    return sent
        if isinstance(value, MessageSet):
            return self._drive(self._core.add_set(topic, value, key, headers, partition, timestamp))
        core = self._core
        if core.has_handler:
            message = Message(value, key, headers or (), partition, timestamp)
            return self._drive(core.add(topic, message))
        row, partition = core.row(value, key, headers, timestamp), checked_partition(partition)
        added = self._accumulator.add(topic, row, partition)
        if isinstance(added, Sent):
            return added
        return self._drive(core.add_row(topic, row, partition))

    def send_many(
        self, topic: str, values: Iterable[Any], keys: Iterable[Any] | None = None
    ) -> SentMany:
        """Put many records on their way, far faster than one by one; a future for all of them.

        It gives, by partition, the ranges of offsets they have. Raises as `send`; one record that
        is too large fails the future, and the others are sent.

        >>> with Producer(bootstrap_servers=broker) as producer:
        ...     many = producer.send_many("clicks", [b"a", b"b", b"c"])
        ...     many.result(timeout=10)
        {0: [OffsetRange(start=3, end=6)]}
        """
        return self._drive(self._core.add_many(topic, values, keys))

    def _drive(self, steps: Steps[T]) -> T:
        """Take the steps, and block for what they need."""
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
            steps.close()  # a handler hears of it, if there was no room

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is settled; `TimeoutError` after `timeout` seconds.

        It raises nothing else: each record's own future says what became of it.
        """
        check_timeout(timeout)
        if not self._accumulator.is_closed:  # then everything is settled
            self._background.run(self._core.flush(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Deliver what was sent, for up to `timeout` seconds, then end; what is left fails.

        Again: nothing.
        """
        check_timeout(timeout)
        if self._is_closing or self._accumulator.is_closed:
            return
        self._background.check_caller()
        self._is_closing = True
        try:
            self._background.run(self._core.close(timeout))
        finally:
            self._background.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _abandon(producer: weakref.ref[Producer]) -> None:
    """In a process that was forked. The loop holds this, and must not hold the producer by it."""
    here = producer()
    if here is not None:
        here._abandon()
