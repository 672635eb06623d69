"""Reads records from given offsets on, with a fetch always in flight to each leader.

Control batches are skipped; records of open and aborted transactions are included
(read_uncommitted). A reader's `positions` are the offsets behind the records it has yielded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import NamedTuple

from kdist.client.cluster import (
    RETRY_MS,
    Cluster,
    NoBroker,
    by_leader,
    by_topic,
    raise_for,
)
from kdist.errors import ApiError, Error
from kdist.model import NO_LEADER, TopicPartition
from kdist.protocol.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from kdist.records.batch import BatchHeader, crc_fault
from kdist.records.build import read_records
from kdist.records.fetched import iter_fetched
from kdist.records.record import Record
from kdist.wire.varint import Buffer

MAX_WAIT_MS = 500
FETCH_BYTES_MAX = 16 << 20
PARTITION_BYTES_MAX = 1 << 20
_PAUSE_S = 0.1


class Fetched(NamedTuple):
    """What one fetch returned for one partition; `end_offset` is the high watermark."""

    partition: TopicPartition
    records: list[tuple[BatchHeader, Record]]
    next_offset: int
    end_offset: int


class Reader:
    """Reads some partitions. Owner: the loop."""

    def __init__(self, cluster: Cluster, offsets: Mapping[TopicPartition, int]) -> None:
        self.positions = dict(offsets)
        self._cluster = cluster
        self._active = set(offsets)
        self._fetches: dict[asyncio.Task[list[Fetched]], int] = {}
        self._troubled_since_s: dict[int, float] = {}  # by leader, until it answers again

    def leave(self, partition: TopicPartition) -> None:
        """Stop reading a partition."""
        self._active.discard(partition)

    async def read(self) -> AsyncGenerator[Fetched, None]:
        """Yield what is there and what comes, until `leave` was called for every partition.

        A partition without new records is yielded too, about every `MAX_WAIT_MS`, to show its end.
        `ApiError` for an error that is not retriable, or that lasts longer than `RETRY_MS`.
        """
        try:
            while self._active:
                await self._start_fetches()
                done, _ = await asyncio.wait(
                    self._fetches, timeout=_PAUSE_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    for fetched in await self._outcome(task, self._fetches.pop(task)):
                        if fetched.partition in self._active:
                            self.positions[fetched.partition] = fetched.next_offset
                            yield fetched
        finally:
            for task in self._fetches:
                task.cancel()

    async def _start_fetches(self) -> None:
        """Start a fetch at each idle leader; returns once at least one fetch is in flight.

        `ApiError` if a partition has had no leader for `RETRY_MS`.
        """
        while True:
            busy = set(self._fetches.values())
            wanted = by_leader(self._cluster.leaders, self._active)
            for leader, partitions in wanted.items():
                if leader not in busy:
                    task = asyncio.ensure_future(self._fetch(leader, partitions))
                    self._fetches[task] = leader
            orphans = self._active.difference(*wanted.values())
            if orphans:
                error = ApiError(Error.LEADER_NOT_AVAILABLE, f"{min(orphans)} has no leader")
                await self._recover(error, NO_LEADER)
            else:
                self._troubled_since_s.pop(NO_LEADER, None)
            if self._fetches:
                return

    async def _outcome(self, task: asyncio.Task[list[Fetched]], leader: int) -> list[Fetched]:
        """What a fetch returned; an empty list if it failed and will be retried."""
        try:
            found = task.result()
        except ApiError as error:
            await self._recover(error, leader)
            return []
        self._troubled_since_s.pop(leader, None)
        return found

    async def _recover(self, error: ApiError, leader: int) -> None:
        """Pause, then refresh metadata; raises an error that is not retriable, or that lasts."""
        now_s = asyncio.get_running_loop().time()
        since_s = self._troubled_since_s.setdefault(leader, now_s)
        if not error.error.retriable or now_s - since_s > RETRY_MS / 1000:
            raise error
        await asyncio.sleep(_PAUSE_S)
        try:
            await self._cluster.metadata({each.topic for each in self._active})
        except NoBroker:
            pass  # the next fetch fails likewise, and comes back here until the time is up

    async def _fetch(self, leader: int, partitions: list[TopicPartition]) -> list[Fetched]:
        topics = [
            FetchTopic(
                topic=name,
                partitions=[
                    FetchPartition(
                        partition=number,
                        fetch_offset=self.positions[TopicPartition(name, number)],
                        partition_max_bytes=PARTITION_BYTES_MAX,
                    )
                    for number in numbers
                ],
            )
            for name, numbers in by_topic(partitions).items()
        ]
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES_MAX, topics=topics
        )
        answer: FetchResponse = await self._cluster.ask(request, leader)
        raise_for(answer.error_code)
        return [
            self._opened(TopicPartition(topic.topic, each.partition_index), each)
            for topic in answer.responses
            for each in topic.partitions
        ]

    def _opened(self, partition: TopicPartition, found: FetchPartitionResult) -> Fetched:
        position = self.positions[partition]
        if found.error_code == Error.OFFSET_OUT_OF_RANGE:
            raise_for(found.error_code, str(partition), f"it has no offset {position}")
        raise_for(found.error_code, str(partition))
        assert not hasattr(found.records, "chunks"), "decoded records are one buffer"
        records: list[tuple[BatchHeader, Record]] = []
        next_offset = position
        buffer: Buffer = found.records or b""  # type: ignore[assignment]
        for source, at, header in iter_fetched(buffer, position):
            next_offset = header.next_offset
            if not header.is_control:
                records += _records_from(source, at, header, position)
        return Fetched(partition, records, next_offset, found.high_watermark)


def _records_from(
    buffer: Buffer, at: int, header: BatchHeader, start_offset: int
) -> list[tuple[BatchHeader, Record]]:
    """A batch's records from an offset on: batches are fetched whole, and may begin earlier."""
    fault = crc_fault(buffer, at, header)
    if fault:
        raise_for(Error.CORRUPT_MESSAGE, "", f"the batch at offset {header.base_offset}: {fault}")
    records = read_records(buffer, at, header)
    return [(header, record) for record in records if record.offset >= start_offset]
