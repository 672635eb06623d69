"""Which offsets a load gets: from the end of the last load to the present end of the topic.

`plan_load` and `plan_replay` decide (pure); `look_at_topic` asks the brokers for what they need.
Nothing is skipped silently: if the brokers have lost records that no load has, or the topic is not
the one that was loaded before, the load is refused with a sentence.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from kdist.client.cluster import Cluster
from kdist.client.offsets import find_ranges
from kdist.errors import UserError
from kdist.model import ZERO_UUID, OffsetRange, TopicPartition
from kdist.spark.asking import ask_once
from kdist.spark.load.manifest import Manifest
from kdist.spark.ranges import Range


class Topic(NamedTuple):
    """A topic as the brokers have it: its id, and each partition's first and next offset."""

    name: str
    id: uuid.UUID
    offsets: dict[int, OffsetRange]


class LoadPlan(NamedTuple):
    """The offsets of a load to make. A replay replaces the loads in `supersedes`.

    `lost` is how many offsets before them are gone, which was accepted by `--accept-loss`.
    """

    number: int
    topic: Topic
    offsets: dict[int, OffsetRange]
    before: Manifest | None
    supersedes: tuple[int, ...] = ()
    lost: int = 0

    @property
    def is_empty(self) -> bool:
        return all(start == end for start, end in self.offsets.values())

    @property
    def ranges(self) -> list[Range]:
        """The offsets as ranges of the data source."""
        return [
            Range(TopicPartition(self.topic.name, partition), start, end)
            for partition, (start, end) in sorted(self.offsets.items())
        ]


def plan_load(topic: Topic, before: Manifest | None, *, accept_loss: bool = False) -> LoadPlan:
    """The load after `before`; `UserError` if none can follow it without losing records.

    With `accept_loss`, it goes on after records that retention has deleted.
    """
    if before is None:
        return LoadPlan(1, topic, dict(topic.offsets), None)
    require_same(topic, before)
    starts = {partition: end for partition, (_, end) in before.offsets.items()}
    offsets, lost = _offsets(topic, starts, accept_loss)
    return LoadPlan(before.load + 1, topic, offsets, before, lost=lost)


def plan_replay(topic: Topic, before: Manifest | None, replayed: list[Manifest]) -> LoadPlan:
    """The load that replaces `replayed`, with their offsets and those written since.

    `before` is the load before the first of them. `UserError` if the brokers no longer have all of
    their records.
    """
    first = replayed[0]
    require_same(topic, replayed[-1])
    starts = {partition: start for partition, (start, _) in first.offsets.items()}
    offsets, _ = _offsets(topic, starts, accept_loss=False)
    superseded = tuple(each.load for each in replayed)
    return LoadPlan(first.load, topic, offsets, before, superseded, first.lost)


def _offsets(
    topic: Topic, starts: dict[int, int], accept_loss: bool
) -> tuple[dict[int, OffsetRange], int]:
    """The offsets from `starts`, or 0 for new partitions, to the end; and how many are lost."""
    found, lost = {}, 0
    for partition, there in topic.offsets.items():
        start = starts.get(partition, 0)
        if start < there.start and not accept_loss:
            raise UserError(
                f"{topic.name}-{partition} is to be loaded from {start} on, but begins at"
                f" {there.start} now: retention deleted {there.start - start} records before they"
                " were loaded; with --accept-loss, a load goes on after them"
            )
        lost += max(0, there.start - start)
        found[partition] = OffsetRange(max(start, there.start), there.end)
    return found, lost


def require_same(topic: Topic, last: Manifest) -> None:
    """`UserError` if the topic is not the one that was loaded, or has lost loaded records.

    Also called for a load that has just been read, as `last`: if the topic was recreated during the
    read, the load has other records at the same offsets.
    """
    # Brokers before 2.8 give topics no ids.
    if uuid.UUID(last.topic_id) != topic.id and ZERO_UUID not in (
        topic.id,
        uuid.UUID(last.topic_id),
    ):
        raise UserError(
            f"{topic.name} is not the topic that was loaded before: it was deleted and recreated,"
            " or is another cluster's; give it an output of its own"
        )
    for partition, (_, end) in sorted(last.offsets.items()):
        there = topic.offsets.get(partition)
        if there is None:
            raise UserError(
                f"{topic.name} has no partition {partition}, but the output has records of it:"
                " it is not the topic that was loaded"
            )
        if end > there.end:
            raise UserError(
                f"{topic.name}-{partition} was loaded up to {end}, but ends at {there.end} now:"
                " the brokers have lost records that were loaded"
            )


def look_at_topic(bootstrap: str, name: str, *, is_committed_only: bool) -> Topic:
    """The topic as it is now; `UserError` if there is none, or no broker."""

    async def look(cluster: Cluster) -> Topic:
        found = await cluster.topic(name)
        partitions = [TopicPartition(name, each.partition_index) for each in found.partitions]
        ranges = await find_ranges(cluster, partitions, is_committed_only=is_committed_only)
        return Topic(name, found.topic_id, {each.partition: ranges[each] for each in partitions})

    return ask_once(bootstrap, "kdist-load", look)
