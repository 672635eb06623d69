"""The consumer for asyncio.

    async with Consumer("localhost:9092", group_id="clicks") as consumer:
        consumer.subscribe(["clicks"])
        async for record in consumer:
            print(record.key, record.value)

Create it within a running event loop, and use it on that loop. Methods that wait are coroutines.
A listener's methods may be coroutines, too.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

from kdist.client.consumer.arguments import (
    Given,
    check_callable,
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
from kdist.client.consumer.batch import Batch, ConsumedRecord, Decoder
from kdist.client.consumer.core import CLOSE_TIMEOUT_S, ConsumerClosed, Core, OnCommitted
from kdist.client.consumer.rebalancing import RebalanceListener
from kdist.client.consumer.settings import read_settings
from kdist.client.discovery import find_brokers, given_brokers
from kdist.client.offsets import TIMESTAMPS, OffsetAndMetadata, OffsetAndTimestamp, check_time
from kdist.client.shared_settings import Servers
from kdist.errors import KdistError
from kdist.model import NO_EPOCH, TopicPartition
from kdist.network.network import AsyncioNetwork
from kdist.runtime.rng import system_rng

T = TypeVar("T")


class Consumer:
    """Reads topics; its settings and methods mean what they mean in `kdist.Consumer`."""

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
        self._use(Core(network, brokers, found, system_rng(), decoders, _call_back))

    @classmethod
    def over(cls, core: Core) -> Self:
        """A front for an existing core, as the connector and simulations have it."""
        consumer = cls.__new__(cls)
        consumer._use(core)
        return consumer

    def _use(self, core: Core) -> None:
        self._open: Core | None = core
        self._unread: list[ConsumedRecord] = []  # polled by `async for`, the next record last
        self._given: ConsumedRecord | None = None  # the last record that `async for` yielded

    @property
    def _core(self) -> Core:
        if self._open is None:
            raise ConsumerClosed
        return self._open

    async def start(self) -> Self:
        """Look up the brokers in ZooKeeper, with `zk_connect`; `async with` calls this."""
        settings, cluster = self._core.settings, self._core.context.cluster
        if settings.zk_connect:
            cluster.bootstrap = await find_brokers((), settings.zk_connect)
        return self

    # What is read

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Read these topics, or all whose names match a pattern, as a member of the group."""
        check_listener(listener, RebalanceListener)
        self._core.subscribe(checked_topics(topics), listener)

    def subscription(self) -> frozenset[str]:
        """The subscribed topics."""
        return self._core.subscribed

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without group management."""
        wanted = checked_partitions(partitions)
        self._put_back()
        self._core.assign(wanted)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions assigned to this consumer."""
        return frozenset(self._core.partitions)

    async def unsubscribe(self) -> None:
        """Drop all topics and partitions, and leave the group."""
        self._put_back()
        await self._core.unsubscribe()

    # Records

    async def poll(
        self, timeout_s: float | None = None, max_records: int | None = None
    ) -> list[ConsumedRecord]:
        """The next records; an empty list if `timeout_s` passes without any (None: no limit)."""
        count = self._core.settings.max_poll_records
        if max_records is not None:
            count = checked_max(max_records, "max_records")
        self._put_back()
        return await self._taken(lambda: self._core.completed.take_records(count), timeout_s)

    async def poll_batches(
        self, timeout_s: float | None = None, max_batches: int = 1000
    ) -> list[Batch]:
        """As `poll`, but whole batches as producers sent them, with nothing decoded yet."""
        count = checked_max(max_batches, "max_batches")
        self._put_back()
        return await self._taken(lambda: self._core.completed.take_batches(count), timeout_s)

    async def _taken(self, take: Callable[[], list[T]], timeout_s: float | None) -> list[T]:
        core = self._core
        self._given = None
        end_s = checked_end(timeout_s, core.context.now_s())
        while True:
            left_s = None if end_s is None else end_s - core.context.now_s()
            core.completed.begun = {}
            await core.ready(left_s)
            try:
                taken = take()
            except KdistError:
                raise
            except BaseException:  # interrupted: nobody would receive what was taken by then
                core.completed.take_back()
                raise
            if core.completed.is_hungry:
                core.completed.is_hungry = False
                core.kick()
            if taken or (left_s is not None and left_s <= 0):
                return taken

    async def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        while True:
            if not self._unread:
                self._unread = (await self.poll())[::-1]
            self._given = self._unread.pop()
            yield self._given

    def _put_back(self) -> None:
        """Set positions to where `async for` is; records it has not yielded are fetched again."""
        unread, self._unread = self._unread, []
        first = {record.batch.partition: record.offset for record in unread}
        for key, offset in first.items():
            if key in self._core.partitions:
                self._core.seek(key, offset, NO_EPOCH)

    def wakeup(self) -> None:
        """Make the current or next `poll` raise `WakenUp`."""
        self._core.wake_up()

    # Positions

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        """Continue from `offset`; with the `leader_epoch` committed beside it, a truncated log is
        detected (KIP-320).
        """
        self._put_back()
        self._core.seek(partition, offset, leader_epoch)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue from the first record of these partitions; of all assigned if none is named."""
        self._put_back()
        self._core.seek_to("earliest", partitions)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue from the end of these partitions; of all assigned if none is named."""
        self._put_back()
        self._core.seek_to("latest", partitions)

    async def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Continue from the first record at or after a time (ms), or the end if there is none."""
        check_time(timestamp_ms)
        self._put_back()
        await self._core.seek_to_time(timestamp_ms, partitions)

    async def position(self, partition: TopicPartition, timeout_s: float | None = None) -> int:
        """The offset of the next record to be returned."""
        self._put_back()
        check_timeout(timeout_s)
        return await self._core.position(partition, timeout_s)

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (ms); None where there is none."""
        return await self._core.list_offsets(checked_times(timestamps_ms))

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition (its log start offset)."""
        earliest = dict.fromkeys(checked_partitions(partitions), TIMESTAMPS["earliest"])
        return found_offsets(await self._core.list_offsets(earliest))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The end offset of each partition: its high watermark, or its last stable offset with
        `isolation_level` read_committed.
        """
        latest = dict.fromkeys(checked_partitions(partitions), TIMESTAMPS["latest"])
        return found_offsets(await self._core.list_offsets(latest))

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these until `resume`; they stay assigned to this consumer."""
        self._put_back()
        self._core.pause(partitions, is_paused=True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these again."""
        self._core.pause(partitions, is_paused=False)

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return self._core.paused()

    # Commits

    async def commit(self, offsets: Given | None = None, timeout_s: float | None = None) -> None:
        """Commit offsets, by default the current positions; returns when they are committed."""
        self._put_back()
        check_timeout(timeout_s)
        given = to_commit(offsets)
        await self._core.commit(given, timeout_s)
        self._core.completed.note_done(given)

    def commit_async(
        self, offsets: Given | None = None, on_committed: OnCommitted = ignore
    ) -> None:
        """Commit in the background; calls `on_committed(offsets, error)` when done."""
        check_callable(on_committed, "on_committed")
        self._put_back()
        given = to_commit(offsets)
        self._core.commit_soon(given, on_committed)
        self._core.completed.note_done(given)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The offsets that the group has committed; None where it has none."""
        check_timeout(timeout_s)
        return await self._core.committed(checked_partitions(partitions), timeout_s)

    # The end

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit if auto-commit is on, and leave the group; a static member stays in it.

        While an exception is handled, the records given last are not committed.
        """
        await self._close(timeout_s, is_done=sys.exception() is None)

    async def _close(self, timeout_s: float, *, is_done: bool) -> None:
        check_timeout(timeout_s)
        if self._open is not None and not self._open.is_closing:
            self._put_back()
            if not is_done:
                self._step_back(self._open)
            try:
                await self._open.close(timeout_s)
            finally:
                self._open = None

    def _step_back(self, core: Core) -> None:
        given, completed = self._given, core.completed
        if given is not None and given.batch.partition in core.partitions:
            partition = core.partitions[given.batch.partition]
            completed.begun = {partition: given.offset}
        completed.step_back({})

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        await self._close(CLOSE_TIMEOUT_S, is_done=error is None)


async def _call_back(function: Callable[..., object], *arguments: object) -> None:
    outcome = function(*arguments)
    if inspect.isawaitable(outcome):
        await outcome
