"""Fetches from the brokers into the streams: one consumer without a group reads all it owns.

A partition's batches from one poll form one chunk of its stream. While a stream has
`queued.max.message.chunks` waiting, its partitions are paused; the consumer keeps what it has
already fetched of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from kdist.classic.connector.ownership import Ownership
from kdist.classic.connector.stream import Chunk, Stream, Streams
from kdist.client.cluster import Address
from kdist.client.consumer.aio import Consumer
from kdist.client.consumer.batch import Batch
from kdist.client.consumer.context import may_pass
from kdist.errors import CorruptRecords, KdistError
from kdist.model import TopicPartition

logger = logging.getLogger(__name__)

_TRY_AGAIN_S = 1.0


class Feed:
    """Fetches the partitions added to it. `bootstrap` is the list that `consumer` bootstraps from.

    Owner: the loop.
    """

    def __init__(
        self,
        consumer: Consumer,
        bootstrap: list[Address],
        streams: Streams,
        *,
        reset_to_start: bool,
    ) -> None:
        self._consumer = consumer
        self._bootstrap = bootstrap
        self._stream_of = streams.of
        self._reset_to_start = reset_to_start
        self._owned: dict[TopicPartition, Ownership] = {}

    def note_brokers(self, addresses: Sequence[Address]) -> None:
        """Replace the bootstrap brokers' addresses by the current ones."""
        self._bootstrap[:] = addresses

    async def first_offset(self, partition: TopicPartition) -> int:
        """Where a group without an offset starts in a partition; waits until it has a leader."""
        find = (
            self._consumer.beginning_offsets if self._reset_to_start else self._consumer.end_offsets
        )
        while True:
            try:
                return (await find([partition]))[partition]
            except KdistError as error:
                if not _may_pass(error):
                    raise
                logger.warning("cannot look up the start of %s yet: %s", partition, error)
            await asyncio.sleep(_TRY_AGAIN_S)

    def add(self, ownership: Ownership) -> None:
        """Fetch from the ownership's position on."""
        assert ownership.start is not None, "the start is known by now"
        self._owned[ownership.partition] = ownership
        self._consumer.assign(self._owned)
        self._consumer.seek(ownership.partition, ownership.start)
        if self._stream_of(ownership).is_full:
            self._consumer.pause(ownership.partition)

    def remove(self, owned: list[Ownership]) -> None:
        for ownership in owned:
            if self._owned.get(ownership.partition) is ownership:
                del self._owned[ownership.partition]
        self._consumer.assign(self._owned)

    def resume(self, stream: Stream) -> None:
        """Resume a stream's partitions, as it has room again."""
        partitions = self._of(stream)
        if partitions:
            self._consumer.resume(*partitions)

    def _of(self, stream: Stream) -> list[TopicPartition]:
        return [
            key for key, ownership in self._owned.items() if self._stream_of(ownership) is stream
        ]

    async def run(self) -> None:
        while True:
            try:
                batches = await self._consumer.poll_batches()
            except KdistError as error:
                self._tell(error)
                await asyncio.sleep(_TRY_AGAIN_S)
            else:
                self._share_out(batches)

    def _share_out(self, batches: list[Batch]) -> None:
        found: dict[TopicPartition, list[Batch]] = {}
        for batch in batches:
            found.setdefault(batch.partition, []).append(batch)
        for partition, several in found.items():
            ownership = self._owned.get(partition)
            if ownership is None:
                continue  # released while its batches were being fetched
            stream = self._stream_of(ownership)
            stream.put(Chunk(ownership, several))
            if stream.is_full:
                self._consumer.pause(*self._of(stream))

    def _tell(self, error: KdistError) -> None:
        """Log a retriable error; raise any other in every stream."""
        if _may_pass(error):
            logger.warning("fetching is retried: %s", error)
            return
        for stream in {self._stream_of(ownership) for ownership in self._owned.values()}:
            stream.fail(error)


def _may_pass(error: KdistError) -> bool:
    return may_pass(error) and not isinstance(error, CorruptRecords)
