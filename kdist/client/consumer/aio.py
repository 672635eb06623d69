"""The consumer that is awaited.

    async with Consumer("localhost:9092", group_id="clicks") as consumer:
        consumer.subscribe(["clicks"])
        async for record in consumer:
            print(record.key, record.value)

Made within a running loop, and used on it. What waits is a coroutine; the rest is done at once.
Listeners may have coroutines for methods.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

from kdist.client.consumer.batch import Batch, ConsumedRecord, Decoder
from kdist.client.consumer.core import CLOSE_TIMEOUT_S, ConsumerClosed, Core, OnCommitted
from kdist.client.consumer.given import (
    Given,
    check_listener,
    check_timeout,
    checked_decoders,
    checked_end,
    checked_max,
    checked_partitions,
    checked_times,
    checked_topics,
    found_offsets,
    ignore,
    to_commit,
)
from kdist.client.consumer.rebalancing import RebalanceListener
from kdist.client.consumer.settings import read_settings
from kdist.client.discovery import find_brokers, given_brokers
from kdist.client.offsets import TIMESTAMPS, OffsetAndMetadata, OffsetAndTimestamp, check_time
from kdist.client.shared_settings import Servers
from kdist.errors import KdistError
from kdist.model import NO_EPOCH, TopicPartition
from kdist.network.world import AsyncioNetwork
from kdist.runtime.chance import system_chance

T = TypeVar("T")


class Consumer:
    """Reads topics; its settings and meanings are those of the consumer that blocks."""

    def __init__(
        self,
        bootstrap_servers: Servers = (),
        *,
        key_decoder: Decoder | None = None,
        value_decoder: Decoder | None = None,
        **settings: Any,
    ) -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        found = read_settings({"bootstrap_servers": bootstrap_servers, **settings})
        brokers = given_brokers(found.bootstrap_servers, found.zk_connect)
        decoders = checked_decoders(key_decoder, value_decoder)
        self._use(Core(network, brokers, found, system_chance(), decoders, _call_back))

    @classmethod
    def over(cls, core: Core) -> Self:
        """A front for a core that was made elsewhere: in a simulation."""
        consumer = cls.__new__(cls)
        consumer._use(core)
        return consumer

    def _use(self, core: Core) -> None:
        self._open: Core | None = core
        self._unread: list[ConsumedRecord] = []  # of `async for`, the next one last

    @property
    def _core(self) -> Core:
        if self._open is None:
            raise ConsumerClosed
        return self._open

    async def start(self) -> Self:
        """Find the brokers where ZooKeeper names them: `async with` does it. Else: nothing."""
        settings, cluster = self._core.settings, self._core.world.cluster
        if settings.zk_connect:
            cluster.bootstrap = await find_brokers((), settings.zk_connect)
        return self

    # What is read

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Read these topics, or all whose names a pattern matches, sharing them with the group."""
        check_listener(listener, RebalanceListener)
        self._core.subscribe(checked_topics(topics), listener)

    def subscription(self) -> frozenset[str]:
        """The topics subscribed."""
        return self._core.subscribed

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read just these partitions, without sharing them with anyone."""
        wanted = checked_partitions(partitions)
        self._put_back()
        self._core.assign(wanted)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read."""
        return frozenset(self._core.partitions)

    async def unsubscribe(self) -> None:
        """Read nothing more; leave the group."""
        self._put_back()
        await self._core.unsubscribe()

    # Records

    async def poll(
        self, timeout_s: float | None = None, max_records: int | None = None
    ) -> list[ConsumedRecord]:
        """Records as soon as there are some; none if `timeout_s` passes before (None: never)."""
        count = self._core.settings.max_poll_records
        if max_records is not None:
            count = checked_max(max_records, "max_records")
        self._put_back()
        return await self._taken(lambda: self._core.shelf.take_records(count), timeout_s)

    async def poll_batches(
        self, timeout_s: float | None = None, max_batches: int = 1000
    ) -> list[Batch]:
        """As `poll`, whole batches, as producers sent them: nothing in them is decoded yet."""
        count = checked_max(max_batches, "max_batches")
        self._put_back()
        return await self._taken(lambda: self._core.shelf.take_batches(count), timeout_s)

    async def _taken(self, take: Callable[[], list[T]], timeout_s: float | None) -> list[T]:
        core = self._core
        end_s = checked_end(timeout_s, core.world.now_s())
        while True:
            left_s = None if end_s is None else end_s - core.world.now_s()
            await core.ready(left_s)
            core.shelf.begun = {}
            try:
                taken = take()
            except KdistError:
                raise
            except BaseException:  # interrupted: what it had by then would be given to nobody
                core.shelf.take_back()
                raise
            if core.shelf.is_hungry:
                core.shelf.is_hungry = False
                core.kick()
            if taken or (left_s is not None and left_s <= 0):
                return taken

    async def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        while True:
            if not self._unread:
                self._unread = (await self.poll())[::-1]
            yield self._unread.pop()

    def _put_back(self) -> None:
        """Have positions be where `async for` is; what it was not given is fetched again."""
        unread, self._unread = self._unread, []
        first = {record.batch.partition: record.offset for record in unread}
        for key, offset in first.items():
            if key in self._core.partitions:
                self._core.seek(key, offset, NO_EPOCH)

    def wakeup(self) -> None:
        """Have `poll`, now or the next time, raise `WakenUp`."""
        self._core.wake_up()

    # Positions

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        """Go on from `offset`; with the epoch it was committed with, truncation is noticed."""
        self._put_back()
        self._core.seek(partition, offset, leader_epoch)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on from the oldest record of these, or of all that are assigned."""
        self._put_back()
        self._core.seek_to("earliest", partitions)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on from the next record that comes."""
        self._put_back()
        self._core.seek_to("latest", partitions)

    async def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Go on from the first record at or after a time, from the end where there is none."""
        check_time(timestamp_ms)
        self._put_back()
        await self._core.seek_to_time(timestamp_ms, partitions)

    async def position(self, partition: TopicPartition, timeout_s: float | None = None) -> int:
        """The offset of the next record that will be given."""
        self._put_back()
        check_timeout(timeout_s)
        return await self._core.position(partition, timeout_s)

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time; None where there is none."""
        return await self._core.list_offsets(checked_times(timestamps_ms))

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The first offset of each."""
        earliest = dict.fromkeys(checked_partitions(partitions), TIMESTAMPS["earliest"])
        return found_offsets(await self._core.list_offsets(earliest))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the next record of each; with read_committed, of the next decided."""
        latest = dict.fromkeys(checked_partitions(partitions), TIMESTAMPS["latest"])
        return found_offsets(await self._core.list_offsets(latest))

    def pause(self, *partitions: TopicPartition) -> None:
        """Give nothing of these until `resume`; the group still counts them as read here."""
        self._put_back()
        self._core.pause(partitions, is_paused=True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Give of these again."""
        self._core.pause(partitions, is_paused=False)

    def paused(self) -> frozenset[TopicPartition]:
        """Those that are paused."""
        return self._core.paused()

    # Commits

    async def commit(self, offsets: Given | None = None, timeout_s: float | None = None) -> None:
        """Commit `offsets`, by default of all that was given; returns when they are committed."""
        self._put_back()
        check_timeout(timeout_s)
        await self._core.commit(to_commit(offsets), timeout_s)

    def commit_async(
        self, offsets: Given | None = None, on_committed: OnCommitted = ignore
    ) -> None:
        """Commit in the background; `on_committed(offsets, error)` is called then."""
        self._put_back()
        self._core.commit_soon(to_commit(offsets), on_committed)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None for nothing."""
        check_timeout(timeout_s)
        return await self._core.committed(checked_partitions(partitions), timeout_s)

    # The end

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit, with auto-commit, and leave the group; a static member stays in it."""
        check_timeout(timeout_s)
        if self._open is not None and not self._open.is_closing:
            self._put_back()
            try:
                await self._open.close(timeout_s)
            finally:
                self._open = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _call_back(function: Callable[..., object], *arguments: object) -> None:
    outcome = function(*arguments)
    if inspect.isawaitable(outcome):
        await outcome
