"""The producer for asyncio: the same core, on the application's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Self, Unpack

from kdist.client.foreign import OtherNames, understanding
from kdist.client.metrics import Measured
from kdist.client.operation import check_timeout
from kdist.client.producer.arguments import checked_partition
from kdist.client.producer.batch import RECORD_OVERHEAD_BYTES
from kdist.client.producer.core import Core, ProducerContext
from kdist.client.producer.message import Message
from kdist.client.producer.meter import ProducerMeter
from kdist.client.producer.results import RecordMetadata, Sent, SentMany, telling
from kdist.client.producer.settings import ProducerKeywords, read_settings
from kdist.client.settings import Servers
from kdist.records.record import Headers


class AsyncProducer(Measured, OtherNames):
    """`kdist.aio.Producer`: `kdist.Producer`, with coroutines for the methods that block.

    Open it with `start`, or use it in an `async with` block. `context` is for simulations.

    >>> async def main():
    ...     async with AsyncProducer(bootstrap_servers=broker) as producer:
    ...         sent = await producer.send("clicks", b"hello")  # it has its place in a batch
    ...         return (await sent).offset  # it is acknowledged
    >>> asyncio.run(main())
    6
    """

    @understanding
    def __init__(
        self,
        bootstrap_servers: Servers = (),
        *,
        context: ProducerContext | None = None,
        **settings: Unpack[ProducerKeywords],
    ) -> None:
        self._config = read_settings({"bootstrap_servers": bootstrap_servers, **settings})
        self._context = context
        self._core: Core | None = None

    async def start(self) -> Self:
        """Open the producer. `UserError` if the settings do not say where the brokers are."""
        assert self._core is None, "a producer is started once"
        context = self._context or ProducerContext.of(asyncio.get_running_loop())
        self._core = await Core.open(context, self._config)
        return self

    @property
    def _started(self) -> Core:
        if self._core is None:
            raise RuntimeError("the producer is not started: use `async with`, or call `start`")
        return self._core

    @property
    def _meter(self) -> ProducerMeter:  # type: ignore[override]
        return self._started.meter

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Sent:
        """As `Producer.send`: returns once the record is in a batch; await the future it returns
        for the acknowledgement.
        """
        accumulator = (self._core or self._started).accumulator
        if type(value) is bytes:
            if key is None and partition is None and headers is None and timestamp is None:
                with accumulator.lock:  # inlined for the reason given in `Producer.send`
                    batch = accumulator.plain.get(topic)
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
            if accumulator.has_short_way and (key is None or type(key) is bytes):
                quick = accumulator.add_quick(topic, value, key, partition, headers, timestamp)
                if quick is not None:
                    return quick
        core = self._started
        if accumulator.has_sealed:
            # A loop over `send` would else hold the event loop until memory is full. Not after the
            # record has its place: who is cancelled then would not know that it is sent.
            accumulator.has_sealed = False
            await asyncio.sleep(0)
        if core.has_handler:
            message = Message(value, key, headers or (), partition, timestamp)
            return await core.drive(core.add(topic, message))
        row = core.row(topic, value, key, headers, timestamp)
        partition = checked_partition(partition)
        added = accumulator.add(topic, row, partition)
        if isinstance(added, Sent):
            return added
        return await core.drive(core.add_row(topic, row, partition))

    @understanding
    async def send_and_wait(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Send a record and wait until it is acknowledged."""
        return await (await self.send(topic, value, key, headers, partition, timestamp))

    @understanding
    async def send_many(
        self, topic: str, values: Iterable[Any], keys: Iterable[Any] | None = None
    ) -> SentMany:
        """As `Producer.send_many`."""
        core = self._started
        with telling(SentMany()) as sent:
            return await core.drive(core.add_many(topic, values, keys, sent))

    @understanding
    async def flush(self, timeout_s: float | None = None) -> None:
        """As `Producer.flush`."""
        check_timeout(timeout_s)
        await self._started.flush(timeout_s)

    @understanding
    async def close(self, timeout_s: float | None = None) -> None:
        """As `Producer.close`."""
        check_timeout(timeout_s)
        if self._core is not None:
            await self._core.close(timeout_s)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()
