"""Where `kdist consume` begins and ends in each partition. An end is exclusive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kdist.cli.shared.connecting import require_in_range
from kdist.model import TopicPartition

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster
    from kdist.client.consumer.aio import Consumer

Offsets = dict[TopicPartition, int]


class Start(NamedTuple):
    """The option that says where to begin; at most one is given. Times are in ms."""

    from_beginning: bool = False
    offset: int | None = None
    time_ms: int | None = None
    last: int | None = None

    @property
    def given(self) -> int:
        """How many of them are given."""
        return self.from_beginning + sum(each is not None for each in self[1:])


class End(NamedTuple):
    """The options that say where to end: at the first of them."""

    at_end: bool = False
    offset: int | None = None
    time_ms: int | None = None


async def start_offsets(
    cluster: Cluster,
    consumer: Consumer,
    partitions: Sequence[TopicPartition],
    start: Start,
    *,
    is_committed_only: bool,
) -> Offsets:
    """Where to begin; without an option at the end.

    `UserError` for an offset that a partition does not have.
    """
    if start.offset is not None:
        offsets = dict.fromkeys(partitions, start.offset)
        await require_in_range(cluster, offsets, is_committed_only=is_committed_only)
        return offsets
    if start.time_ms is not None:
        return await _offsets_at(consumer, partitions, start.time_ms)
    if start.from_beginning:
        return await consumer.beginning_offsets(partitions)
    ends = await consumer.end_offsets(partitions)
    if start.last is not None:
        starts = await consumer.beginning_offsets(partitions)
        return {each: max(starts[each], ends[each] - start.last) for each in partitions}
    return ends


async def end_offsets(
    consumer: Consumer, partitions: Sequence[TopicPartition], end: End
) -> Offsets | None:
    """Where to end; None for nowhere."""
    given: list[Offsets] = []
    if end.at_end:
        given.append(await consumer.end_offsets(partitions))
    if end.offset is not None:
        given.append(dict.fromkeys(partitions, end.offset))
    if end.time_ms is not None:
        given.append(await _offsets_at(consumer, partitions, end.time_ms))
    if not given:
        return None
    return {each: min(offsets[each] for offsets in given) for each in partitions}


async def _offsets_at(
    consumer: Consumer, partitions: Sequence[TopicPartition], time_ms: int
) -> Offsets:
    """The first record of that time or later in each partition, or its end if there is none."""
    found = await consumer.offsets_for_times(dict.fromkeys(partitions, time_ms))
    ends = await consumer.end_offsets([each for each, at in found.items() if at is None])
    return {each: ends[each] if at is None else at.offset for each, at in found.items()}
