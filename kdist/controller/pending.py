"""What a broker has not been told yet: partitions, not their states.

The states are looked up when a request is made. So of several changes of one partition only the
newest is sent, and two `Pending`s merge by union.
"""

from __future__ import annotations

import asyncio
import dataclasses
import uuid

from kdist.model import TopicPartition


@dataclasses.dataclass(slots=True)
class Pending:
    """`is_full`: everything the broker must know, besides what stands here."""

    is_full: bool = False
    leaders: set[TopicPartition] = dataclasses.field(default_factory=set)  # by LeaderAndIsr
    metadata: set[TopicPartition] = dataclasses.field(default_factory=set)  # by UpdateMetadata
    gone: dict[TopicPartition, uuid.UUID] = dataclasses.field(default_factory=dict)
    stops: set[TopicPartition] = dataclasses.field(default_factory=set)  # by StopReplica
    has_brokers: bool = False  # the brokers alive are others
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
        """Take in what `other` has to tell, and who waits for it."""
        self.is_full |= other.is_full
        self.leaders |= other.leaders
        self.metadata |= other.metadata
        self.gone |= other.gone
        self.stops |= other.stops
        self.has_brokers |= other.has_brokers
        self.waiters += other.waiters

    def release(self) -> None:
        """All of it was told, or nobody is there any more to tell it to."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()
