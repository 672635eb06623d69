"""The blocking consumer.

    with Consumer("localhost:9092", group_id="clicks") as consumer:
        consumer.subscribe(["clicks"])
        for record in consumer:
            print(record.key, record.value)

Only one thread may use it at a time: while it is in a call, calls of other threads raise
`UserError`, except for `wakeup` and `close`. Fetching and heartbeats run in a background thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kdist.client.background import BackgroundLoop
from kdist.client.consumer.arguments import (
    ToCommit,
    check_timeout,
    checked_decoders,
    checked_end,
    checked_max,
)
from kdist.client.consumer.batch import Batch, ConsumedRecord, Decoder
from kdist.client.consumer.core import CLOSE_TIMEOUT_S, ConsumerClosed, Core
from kdist.client.consumer.immediate import ImmediateMethods
from kdist.client.consumer.iteration import Iteration
from kdist.client.consumer.settings import read_settings
from kdist.client.consumer.sole_use import SoleUse
from kdist.client.discovery import find_brokers
from kdist.client.offsets import OffsetAndMetadata, OffsetAndTimestamp
from kdist.client.shared_settings import Servers
from kdist.errors import KdistError, UserError
from kdist.model import TopicPartition
from kdist.network.network import AsyncioNetwork
from kdist.runtime.rng import system_rng

if TYPE_CHECKING:
    from kdist.client.classic.connector import ConsumerConnector, Stream

T = TypeVar("T")
_SOON_S = 0.05


class Consumer(ImmediateMethods):
    """Reads topics, alone or as a member of a group. `close` it, or use it in a `with` block.

    `settings` are those that `ConsumerSettings` lists; an unknown or invalid one raises
    `UserError`. `key_decoder` and `value_decoder` turn bytes into any object; null stays None.

    >>> Consumer("localhost:9092", grup_id="clicks")
    Traceback (most recent call last):
    kdist.errors.UserError: a consumer has no setting 'grup_id': did you mean group_id?
    """

    def __init__(
        self,
        bootstrap_servers: Servers = (),
        *,
        key_decoder: Decoder | None = None,
        value_decoder: Decoder | None = None,
        **settings: Any,
    ) -> None:
        found = read_settings({"bootstrap_servers": bootstrap_servers, **settings})
        decoders = checked_decoders(key_decoder, value_decoder)
        self._poll_records_max = found.max_poll_records
        self._iteration = Iteration()
        self._background = background = BackgroundLoop("kdist-consumer")

        async def open_core() -> Core:
            brokers = await find_brokers(found.bootstrap_servers, found.zk_connect)
            network = AsyncioNetwork(background.loop)
            return Core(network, brokers, found, system_rng(), decoders, background.call_back)

        try:
            self._core: Core = background.run(open_core())
        except BaseException:
            background.stop()
            raise
        background.warn_if_left(self)
        self._completed = self._core.completed
        self._sole_use = SoleUse(background.check_caller)
        self._is_closed = False

    # The first design's consumers, with groups in ZooKeeper: see `kdist.client.classic.connector`

    @staticmethod
    def create(config: Mapping[str, Any]) -> ConsumerConnector:
        """Create a connector; `config` has the settings of `ConnectorSettings`."""
        from kdist.client.classic import (
            connector,  # here, as few need it and kazoo is slow to import
        )

        return connector.create(config)

    @staticmethod
    def create_message_streams(
        topic: str, count: int, config: Mapping[str, Any] | None = None
    ) -> list[Stream]:
        """Streams of one topic, from a new connector, as in the first paper's sample."""
        from kdist.client.classic import connector

        return connector.create_message_streams(topic, count, config)

    # What is read

    def unsubscribe(self) -> None:
        """Drop all topics and partitions, and leave the group."""
        self._iteration.drop()
        self._run(self._core.unsubscribe())

    # Records

    def poll(
        self, timeout_s: float | None = None, max_records: int | None = None
    ) -> list[ConsumedRecord]:
        """The next records; an empty list if `timeout_s` passes without any (None: no limit).

        At most `max_records`, by default `max_poll_records`. With `enable_auto_commit`, a poll
        implies that the records before it have been processed, and may be committed.

        Raises `WakenUp` after `wakeup`, `NotDecoded` if a decoder fails, `OffsetOutOfRange` and
        `NoOffset` with `auto_offset_reset` none, other `ApiError`, and what a listener raises.
        """
        count = self._poll_records_max
        if max_records is not None:
            count = checked_max(max_records, "max_records")
        if rest := self._iteration.rest(count):
            return rest
        return self._taken(lambda: self._completed.take_records(count), timeout_s)

    def poll_batches(self, timeout_s: float | None = None, max_batches: int = 1000) -> list[Batch]:
        """As `poll`, but whole batches as producers sent them, with nothing decoded yet."""
        count = checked_max(max_batches, "max_batches")
        self._give_back()
        return self._taken(lambda: self._completed.take_batches(count), timeout_s)

    def _taken(self, take: Callable[[], list[T]], timeout_s: float | None) -> list[T]:
        """What `take` returns. If it is interrupted, what it took is fetched again."""
        self._sole_use.check()
        with self._sole_use.lock:
            self._completed.begun = {}
            try:
                return self._taken_in_time(take, timeout_s)
            except KdistError:
                raise
            except BaseException:
                self._call(self._completed.take_back)
                raise

    def _taken_in_time(self, take: Callable[[], list[T]], timeout_s: float | None) -> list[T]:
        core, completed = self._core, self._completed
        end_s = checked_end(timeout_s, core.context.now_s())
        if taken := self._taken_soon(take, end_s):
            return taken
        while True:
            left_s = None if end_s is None else end_s - core.context.now_s()
            self._run(core.ready(left_s))
            taken = take()
            self._maybe_kick()
            if taken or (left_s is not None and left_s <= 0 and completed.is_empty):
                return taken

    def _taken_soon(self, take: Callable[[], list[T]], end_s: float | None) -> list[T]:
        """What is ready or arrives within `_SOON_S`, unless the loop has other work for a poll.

        A round trip to the loop costs 0.1 ms, which a consumer faster than its broker would
        otherwise spend on every poll.
        """
        context = self._core.context
        soon_s = context.now_s() + _SOON_S
        end_s = soon_s if end_s is None else min(soon_s, end_s)
        self._core.note_poll()
        while self._core.is_calm and not self._is_closed and not self._background.is_elsewhere:
            taken = take()
            self._maybe_kick()
            left_s = end_s - context.now_s()
            if taken or left_s <= 0:
                return taken
            context.wakeup.wait_in_thread(left_s)
        return []

    def _maybe_kick(self) -> None:
        if self._completed.is_hungry:
            self._completed.is_hungry = False
            self._background.loop.call_soon_threadsafe(self._core.kick)

    def __iter__(self) -> Iterator[ConsumedRecord]:
        """Yield records from where the last loop stopped; waits for more, and never ends."""
        return chain.from_iterable(self._runs())

    def _runs(self) -> Iterator[Iterator[ConsumedRecord]]:
        iteration, completed = self._iteration, self._completed

        def take() -> list[Any]:
            partition, records = completed.take_run(self._poll_records_max)
            return [partition, records] if records else []

        while True:
            yield iteration.left  # shared with loops that were left, or that run beside this one
            if iteration.is_given:
                iteration.drop()
                iteration.begin(*self._taken(take, None))

    def wakeup(self) -> None:
        """Make the current or next `poll` raise `WakenUp`, unless closed. Any thread may call."""
        if not self._is_closed:
            self._core.is_waking = True  # set here, as the next poll may be in this thread
            self._background.loop.call_soon_threadsafe(self._core.context.wakeup.set)

    # Positions

    def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Continue from the first record at or after a time (ms), or the end if there is none."""
        self._iteration.drop(partitions)
        self._run(self._core.seek_to_time(timestamp_ms, partitions))

    def position(self, partition: TopicPartition, timeout_s: float | None = None) -> int:
        """The offset of the next record to be returned."""
        self._iteration.settle()
        return self._run(self._core.position(partition, timeout_s))

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (ms); None where there is none."""
        return self._run(self._core.offsets_for_times(timestamps_ms))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition (its log start offset)."""
        return self._run(self._core.ends("earliest", partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermark of each; with read_committed, its last stable offset."""
        return self._run(self._core.ends("latest", partitions))

    # Commits

    def commit(self, offsets: ToCommit | None = None, timeout_s: float | None = None) -> None:
        """Commit offsets, by default the current positions; returns when they are committed.

        An offset is a number, or an `OffsetAndMetadata`. Raises `CommitFailed` if the group has
        rebalanced without this member, `ApiError` for an error that outlasts `timeout_s` (None:
        `default_api_timeout_ms`) or is not retriable.
        """
        self._iteration.settle()
        self._run(self._core.commit(offsets, timeout_s))

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The offsets that the group has committed; None where it has none."""
        return self._run(self._core.committed(partitions, timeout_s))

    # The end

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit if auto-commit is on, and leave the group; a static member stays in it.

        While an exception is handled, the records given last are not committed.
        """
        self._close(timeout_s, is_done=sys.exception() is None)

    def _close(self, timeout_s: float, *, is_done: bool) -> None:
        check_timeout(timeout_s)
        if self._is_closed or self._core.is_closing or self._background.is_elsewhere:
            return  # closed, or closing: a listener called meanwhile may call `close` again
        self._background.check_caller()
        self._sole_use.is_ending = True
        self._end_iteration(is_done=is_done)
        try:
            self._background.run(self._core.close(timeout_s))
        finally:
            self._is_closed = True
            self._background.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._close(CLOSE_TIMEOUT_S, is_done=error is None)

    # Calls to the loop

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_open()
            self._sole_use.check()
        except UserError:
            work.close()
            raise
        with self._sole_use.lock:
            return self._background.run(work)

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        self._check_open()
        self._sole_use.check()
        with self._sole_use.lock:
            return self._background.call(function, *arguments)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConsumerClosed
