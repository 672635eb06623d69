"""A consumer's interceptors: they see records before the application does, and commits.

Those of Java's consumer (KIP-42): called in the order of the setting `interceptors`, each with what
the one before it returned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from kdist.client.committed import Offsets
from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.consumer.iteration import Iteration
from kdist.client.guard import Guard

Records = list[ConsumedRecord]


class ConsumerInterceptor:
    """Override the methods you need, and give an instance in the setting `interceptors`.

    What one raises is logged, once a minute, and breaks nothing.
    """

    def on_consume(self, records: list[ConsumedRecord]) -> list[ConsumedRecord]:
        """Called before `poll` returns, in its thread; what it returns is returned instead.

        A loop over the consumer calls it with one record at a time. `poll_batches` does not, as
        its batches are not decoded. Records that it leaves out count as read.
        """
        return records

    def on_commit(self, offsets: Offsets) -> None:
        """The coordinator has these offsets. Called on the consumer's event loop, so be quick."""

    def close(self) -> None:
        """The consumer is closed."""


class ConsumerInterceptors:
    """The chain of a consumer's interceptors."""

    def __init__(self, chain: Sequence[ConsumerInterceptor], now_s: Callable[[], float]) -> None:
        self._chain = chain
        self._guard = Guard(now_s)

    def on_consume(self, records: Records) -> Records:
        if records:
            for each in self._chain:
                records = self._guard.call(records, each.on_consume, records)
        return records

    def each(
        self, records: Iterator[ConsumedRecord], iteration: Iteration
    ) -> Iterator[ConsumedRecord]:
        """The records of a loop: one at a time, so that positions stay those of the loop."""
        for record in records:
            yield from self._on_yield(record, iteration)

    async def each_later(
        self, records: AsyncIterator[ConsumedRecord], iteration: Iteration
    ) -> AsyncIterator[ConsumedRecord]:
        """As `each`, for asyncio."""
        async for record in records:
            for found in self._on_yield(record, iteration):
                yield found

    def _on_yield(self, record: ConsumedRecord, iteration: Iteration) -> Records:
        try:
            return self.on_consume([record])
        except BaseException:  # interrupted: nobody would receive it
            iteration.take_back(record)
            raise

    def on_commit(self, offsets: Offsets) -> None:
        for each in self._chain:
            self._guard.call(None, each.on_commit, offsets)

    def close(self) -> None:
        for each in self._chain:
            self._guard.call(None, each.close)
