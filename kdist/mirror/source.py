"""The source of a flow as its streams use it: commits, offsets, and from where it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import KdistError
from kdist.model import TopicPartition


class Source(Protocol):
    """The source as a stream uses it."""

    async def committed(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """What the flow's group has committed."""
        ...

    async def start_offset(self, partition: TopicPartition) -> int:
        """Where to begin with a partition that was never mirrored."""
        ...

    def fault_of(self, partition: TopicPartition) -> KdistError | None:
        """Why what it has does not follow on what was mirrored, if it does not."""
        ...

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit, now."""
        ...

    def read_from(self, partition: TopicPartition, offset: int, leader_epoch: int) -> None:
        """Give batches from here on, to `Stream.put`."""
        ...

    def read_no_more(self, partition: TopicPartition) -> None:
        """Give none until `read_from`."""
        ...
