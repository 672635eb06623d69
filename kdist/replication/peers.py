"""What partitions and fetchers are given: this broker's parts, and the way to other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from kdist.config.replication import ReplicationSettings
from kdist.errors import ApiError, Error
from kdist.metrics.replication import ReplicationMetrics
from kdist.model import NO_EPOCH, Broker
from kdist.network.client import Client
from kdist.replication.alter_partition_manager import CommittedIsr, IsrChanges, Proposal
from kdist.replication.delayed import DelayedOperations
from kdist.replication.throttles import ReplicationThrottle
from kdist.replication.writer import Writers
from kdist.runtime.tasks import Tasks
from kdist.storage.directory import LogDirectory
from kdist.storage.flushing import Flusher


class Peers(NamedTuple):
    """What a broker's `Replicas` share. `find` and `is_alive` go by the broker's metadata."""

    settings: ReplicationSettings
    find: Callable[[int], Broker | None]
    """The address of a live broker, on the inter-broker listener."""
    is_alive: Callable[[int], bool]
    broker_epoch: Callable[[], int]
    """This broker's own."""
    connect: Callable[[str, int], Awaitable[Client]]
    """ApiError NETWORK_EXCEPTION if nobody answers there."""
    propose: Callable[[Proposal], asyncio.Future[CommittedIsr]]
    """Have the controller write an ISR: see `AlterPartitionManager.propose`."""


async def _connect_to_nobody(_host: str, _port: int) -> Client:
    raise ApiError(Error.NETWORK_EXCEPTION, "this broker is alone")


def _propose_to_nobody(_: Proposal) -> asyncio.Future[CommittedIsr]:
    raise AssertionError("a broker that is alone has no ISR to change")


ALONE = Peers(
    settings=ReplicationSettings(),
    find=lambda _broker_id: None,
    is_alive=lambda _broker_id: False,
    broker_epoch=lambda: NO_EPOCH,
    connect=_connect_to_nobody,
    propose=_propose_to_nobody,
)
"""For tests, and for all that has one broker."""


class PartitionContext(NamedTuple):
    """What every partition is given by its owner, `Replicas`."""

    broker_id: int
    writers: Writers
    delayed: DelayedOperations
    flusher: Flusher
    metrics: ReplicationMetrics
    isr_changes: IsrChanges
    peers: Peers


class FetcherContext(NamedTuple):
    """What every fetcher is given by its owner, `Fetchers`."""

    broker_id: int
    peers: Peers
    directory: LogDirectory
    metrics: ReplicationMetrics
    throttle: ReplicationThrottle

    @property
    def tasks(self) -> Tasks:
        return self.directory.context.tasks
