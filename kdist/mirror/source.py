"""The interface through which streams use their mirror flow's source: commits, offsets, reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import KdistError
from kdist.model import TopicPartition


class Source(Protocol):
    """A flow's source. `MirrorFlow` implements it."""

    async def committed(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """The offset that the flow's group has committed, if any."""
        ...

    async def begin(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """Commit where to begin with a partition that has no commit, and return it.

        None if that cannot be said before the target is asked: it may have been mirrored before, or
        begins with its earliest record.
        """
        ...

    async def start_offset(self, partition: TopicPartition, *, is_emptied: bool) -> int:
        """The first offset to mirror of a partition that was never mirrored.

        `is_emptied`: the target's partition had records once. `Loss` if they may have been ours.
        """
        ...

    def fault_of(self, partition: TopicPartition) -> KdistError | None:
        """Why the source's records do not continue those that were mirrored; None if they do."""
        ...

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit these offsets for the flow's group."""
        ...

    def read_from(self, partition: TopicPartition, offset: int, leader_epoch: int) -> None:
        """Pass the partition's batches from `offset` on to `Stream.put`."""
        ...

    def read_no_more(self, partition: TopicPartition) -> None:
        """Pass no more batches until the next `read_from`."""
        ...
