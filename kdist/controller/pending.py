"""What a broker has not been told yet: partitions, without their states.

The states are looked up when a request is built. So if a partition changes several times, only the
newest state is sent, and two `Pending`s merge by union.
"""

from __future__ import annotations

import asyncio
import dataclasses
import uuid

from kdist.model import TopicPartition


@dataclasses.dataclass(slots=True)
class Pending:
    """`is_full`: send full requests, with everything the broker must know."""

    is_full: bool = False
    leaders: set[TopicPartition] = dataclasses.field(default_factory=set)  # by LeaderAndIsr
    metadata: set[TopicPartition] = dataclasses.field(default_factory=set)  # by UpdateMetadata
    gone: dict[TopicPartition, uuid.UUID] = dataclasses.field(default_factory=dict)
    stops: set[TopicPartition] = dataclasses.field(default_factory=set)  # by StopReplica
    has_brokers: bool = False  # the set of live brokers has changed
    waiters: list[asyncio.Future[None]] = dataclasses.field(default_factory=list)

    @property
    def has_metadata(self) -> bool:
        """Whether an UpdateMetadata is due."""
        return bool(self.is_full or self.metadata or self.gone or self.has_brokers)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be sent."""
        return not (self.leaders or self.stops or self.has_metadata)

    def add(self, other: Pending) -> None:
        """Merge `other` in, with its waiters."""
        self.is_full |= other.is_full
        self.leaders |= other.leaders
        self.metadata |= other.metadata
        self.gone |= other.gone
        self.stops |= other.stops
        self.has_brokers |= other.has_brokers
        self.waiters += other.waiters

    def release(self) -> None:
        """Complete the waiters: all of it was sent, or the broker is gone."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()
