"""What all parts of one consumer share: settings, connections, randomness, wake-ups, errors."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import nan
from typing import TypeVar

from kdist.client.backoff import backoff_s
from kdist.client.cluster import Address, Cluster, Lane, NoBroker
from kdist.client.committed import Offsets
from kdist.client.consumer.partition import Partition
from kdist.client.consumer.settings import ConsumerSettings
from kdist.client.metrics import ClientMeter
from kdist.client.security import client_security
from kdist.errors import ApiError, KdistError, UserError
from kdist.metrics.clients import (
    ConsumerMetrics,
    ConsumerPartitionMetrics,
    ConsumerTopicMetrics,
)
from kdist.metrics.declare import Family
from kdist.model import NO_OFFSET, TopicPartition
from kdist.network.client import ClientSettings
from kdist.network.network import Network

T = TypeVar("T")


# Deadline minus now may be a mere rounding error, less than the nanosecond that a simulated clock
# counts in: waiting for that remainder would not advance the clock, and so never end.
_SHORTEST_S = 1e-6


class Wakeup:
    """An event, set on the loop, for which coroutines `wait` and one thread `wait_in_thread`s."""

    def __init__(self) -> None:
        self._is_set = asyncio.Event()
        self._bell = threading.Lock()  # unlocked means set
        self._bell.acquire()

    def set(self) -> None:
        """Wake up the waiters, or the next ones to wait."""
        self._is_set.set()
        if self._bell.locked():  # no race: only this method releases it
            self._bell.release()

    def clear(self) -> None:
        """Reset the event for `wait`."""
        self._is_set.clear()

    async def wait(self, timeout_s: float) -> None:
        """Wait until `set` has been called since `clear`, or time is up."""
        try:
            async with asyncio.timeout(max(timeout_s, _SHORTEST_S)):
                await self._is_set.wait()
        except TimeoutError:
            pass  # the caller looks again in either case

    def wait_in_thread(self, timeout_s: float) -> None:
        """Wait until `set` has been called since the last call of this, or time is up."""
        self._bell.acquire(timeout=timeout_s)


class ConsumerMeter(ClientMeter):
    """Its metrics. Owner: the loop; the thread that takes completed fetches counts in a topic."""

    def __init__(self, settings: ConsumerSettings) -> None:
        super().__init__(settings.client_id)
        self.own = ConsumerMetrics()
        self.topics = Family(ConsumerTopicMetrics, "topic")
        self._is_committed_only = settings.is_committed_only
        self.exposition.add(self.own)
        self.exposition.add_family(self.topics)

    def show(self, partitions: Mapping[TopicPartition, Partition]) -> None:
        """Show the assigned partitions, which this is a view of."""

        def lags() -> Family[ConsumerPartitionMetrics]:
            family = Family(ConsumerPartitionMetrics, "topic", "partition")
            for (topic, number), partition in list(partitions.items()):
                family[topic, str(number)].lag_records = self._lag(partition)
            return family

        self.own.assigned_partitions = lambda: len(partitions)
        self.exposition.add_made(lags)

    def _lag(self, partition: Partition) -> float:
        """As `Core.lag`, but records taken count as read: whoever asks may be in any thread."""
        is_stable = self._is_committed_only
        end = partition.last_stable_offset if is_stable else partition.high_watermark
        position = None if partition.is_missing else partition.position
        if end == NO_OFFSET or position is None:
            return nan
        return max(0, end - max(position, partition.log_start_offset))


class ConsumerContext:
    """Owner: the loop. `wakeup` is set whenever something happens that a poll may wait for."""

    def __init__(
        self,
        network: Network,
        bootstrap: Sequence[Address],
        settings: ConsumerSettings,
        rng: random.Random,
    ) -> None:
        self.loop = network.loop
        self.settings = settings
        self.wakeup = Wakeup()
        self.meter = ConsumerMeter(settings)
        self.on_committed: Callable[[Offsets], object] = lambda _: None  # of interceptors
        self._trouble: KdistError | None = None
        self._rng = rng
        connections = ClientSettings(
            settings.client_id,
            request_timeout_ms=settings.request_timeout_ms,
            metrics=self.meter.connections,
            security=client_security(settings),
        )
        self.cluster = Cluster(network, bootstrap, connections, settings.default_api_timeout_ms)
        self.fetching = Lane(network, self.cluster, connections)
        self.group = Lane(network, self.cluster, connections)
        self.joining = Lane(network, self.cluster, connections)

    def close(self) -> None:
        for each in (self.cluster, self.fetching, self.group, self.joining):
            each.close()

    # Time

    def now_s(self) -> float:
        return self.loop.time()

    def backoff_s(self, failures: int = 0) -> float:
        """How long to wait before a retry, after so many earlier failures."""
        settings = self.settings
        limits_ms = settings.retry_backoff_ms, settings.retry_backoff_max_ms
        return backoff_s(failures, *limits_ms, self._rng)

    async def back_off(self, failures: int = 0) -> None:
        await asyncio.sleep(self.backoff_s(failures))

    async def retried(self, work: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """What `work` returns, retried after retriable errors; the last error when time is up."""
        return await self.cluster.retried(
            work, timeout_s, may_pass=may_pass, pause_s=self.backoff_s
        )

    # Errors for the next poll

    def report(self, error: KdistError) -> None:
        """Have the next poll raise `error`; of several, only the first is kept."""
        if self._trouble is None:
            self._trouble = error
        self.wakeup.set()

    def forgive(self, is_mended: Callable[[KdistError], bool]) -> None:
        """Drop the reported error if `is_mended` says that it no longer applies."""
        if self._trouble is not None and is_mended(self._trouble):
            self._trouble = None

    @property
    def is_troubled(self) -> bool:
        return self._trouble is not None

    def raise_trouble(self) -> None:
        """Raise the reported error, once."""
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble


def may_pass(error: KdistError) -> bool:
    """Whether the error is retriable."""
    return isinstance(error, NoBroker) or (isinstance(error, ApiError) and error.error.retriable)


class ConsumerClosed(UserError):
    """The consumer was closed: it no longer reads or commits."""

    def __init__(self) -> None:
        super().__init__("the consumer is closed")


class WakenUp(KdistError):
    """`wakeup` was called, which interrupted this poll."""
