"""What all parts of one consumer share: settings, connections, randomness, wake-ups, errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from kdist.client.backoff import backoff_s
from kdist.client.cluster import Address, Cluster, Lane, NoBroker
from kdist.client.committed import Offsets
from kdist.client.consumer.meter import ConsumerMeter
from kdist.client.consumer.settings import ConsumerSettings
from kdist.client.consumer.wakeup import Wakeup
from kdist.client.security import client_security
from kdist.errors import ApiError, KdistError
from kdist.network.client import ClientSettings
from kdist.network.network import Network

T = TypeVar("T")


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
