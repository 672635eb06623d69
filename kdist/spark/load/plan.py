"""Which offsets a load gets: from the end of the last load to the present end of the topic.

`plan_load` and `plan_replay` decide (pure); `look_at_topic` asks the brokers for what they need.
Nothing is skipped silently: if the brokers have lost records that no load has, or the topic is not
the one that was loaded before, the load is refused with a sentence.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

from kdist.client.cluster import Cluster
from kdist.client.consumer.settings import read_settings
from kdist.client.fetch_once import fetch_at
from kdist.client.offsets import OffsetAndTimestamp, find_epoch_ends, find_offsets, list_offsets
from kdist.config.load_job import LoadSettings
from kdist.errors import KdistError, UserError
from kdist.model import NO_EPOCH, ZERO_UUID, OffsetRange, TopicPartition
from kdist.protocol.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from kdist.spark.asking import ask_once
from kdist.spark.load.manifest import Manifest
from kdist.spark.ranges import Range
from kdist.spark.security_file import read_security

T = TypeVar("T")

_TRANSACTION_MS_MAX = 900_000  # brokers end those that are open for longer: their default


class Unread(NamedTuple):
    """What is behind an open transaction: its first record's time, and how many offsets."""

    timestamp_ms: int
    size: int


_NOTHING = Unread(0, 0)


class Topic(NamedTuple):
    """A topic as the brokers have it: its id, and each partition's first and next offset.

    `epochs` are the partitions' leader epochs at these offsets. `ends` is where those leader epochs
    end that were asked for, which are a load's: before its last offset, if that was lost. `unread`
    has the partitions with records that are not loaded yet, as a transaction has not ended.
    """

    name: str
    id: uuid.UUID
    offsets: dict[int, OffsetRange]
    epochs: Mapping[int, int] = {}
    ends: Mapping[int, int] = {}
    unread: Mapping[int, Unread] = {}


class TransactionHangs(KdistError):
    """A transaction keeps records from being loaded, and seems to have been forgotten."""


class LoadPlan(NamedTuple):
    """The offsets of a load to make. A replay replaces the loads in `replayed`.

    `lost` is how many offsets before them are gone, which was accepted by `--accept-loss`.
    """

    number: int
    topic: Topic
    offsets: dict[int, OffsetRange]
    before: Manifest | None
    replayed: tuple[Manifest, ...] = ()
    lost: int = 0

    @property
    def supersedes(self) -> tuple[int, ...]:
        """The numbers of the loads that it replaces."""
        return tuple(each.load for each in self.replayed)

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


def hanging(plan: LoadPlan, now_ms: int) -> TransactionHangs | None:
    """What to say of a transaction that is old and held up the last load, too; None if none is."""
    topic, loaded = plan.topic, plan.before.offsets if plan.before is not None else {}
    for partition, (timestamp_ms, count) in topic.unread.items():
        end = topic.offsets[partition].end
        is_held_up = partition in loaded and loaded[partition].end == end
        if is_held_up and now_ms - timestamp_ms > _TRANSACTION_MS_MAX:
            return TransactionHangs(
                f"{topic.name}-{partition} ends for readers at offset {end}, as at the last load: a"
                f" transaction that began there has not ended, and {count} offsets wait for it."
                " Retention may delete them unread: end the transaction, for example with"
                " kafka-transactions.sh abort"
            )
    return None


def plan_replay(topic: Topic, before: Manifest | None, replayed: list[Manifest]) -> LoadPlan:
    """The load that replaces `replayed`, with their offsets and those written since.

    `before` is the load before the first of them. `UserError` if the brokers no longer have all of
    their records.
    """
    first = replayed[0]
    require_same(topic, replayed[-1])
    starts = {partition: start for partition, (start, _) in first.offsets.items()}
    offsets, _ = _offsets(topic, starts, accept_loss=False)
    return LoadPlan(first.load, topic, offsets, before, tuple(replayed), first.lost)


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


def require_replayed(plan: LoadPlan, read: int) -> None:
    """`UserError` if a replay has read fewer records than the loads have that it replaces.

    `read` counts those before the replaced loads' end. Offsets do not tell: compaction leaves them.
    """
    wanted = sum(each.rows for each in plan.replayed)
    if read < wanted:
        raise UserError(
            f"{plan.topic.name} cannot be replayed from load {plan.number} on: {wanted - read} of"
            f" its {wanted} records are gone from the topic, which was compacted; nothing is"
            " changed"
        )


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
        if there.end < end <= there.end + topic.unread.get(partition, _NOTHING).size:
            raise UserError(
                f"{topic.name}-{partition} was loaded up to {end} with isolation.level"
                f" read_uncommitted, and ends at {there.end} with read_committed as long as a"
                " transaction is open: wait until it has ended"
            )
        if end > there.end:
            raise UserError(
                f"{topic.name}-{partition} was loaded up to {end}, but ends at {there.end} now:"
                " the brokers have lost records that were loaded"
            )
        if (epoch_end := topic.ends.get(partition, end)) < end:
            raise UserError(
                f"{topic.name}-{partition} was loaded up to {end} in leader epoch"
                f" {last.epochs[partition]}, which ends at {epoch_end} now: the brokers have lost"
                " records that were loaded, and have others in their place"
            )


def ask(job: LoadSettings, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Run `work` with the cluster that the job loads from; `UserError` if no broker answers."""
    given = {"client_id": "kdist-load", **read_security(job.security_file)}
    return ask_once(job.bootstrap_servers, read_settings(given), work)


def look_at_topic(job: LoadSettings, name: str, epochs: Mapping[int, int]) -> Topic:
    """The topic as it is now, and where these leader epochs of its partitions end.

    `UserError` if there is none, or no broker.
    """
    is_committed_only = job.isolation_level == "read_committed"
    return ask(job, lambda cluster: find_topic(cluster, name, is_committed_only, epochs))


async def find_topic(
    cluster: Cluster, name: str, is_committed_only: bool, epochs: Mapping[int, int]
) -> Topic:
    """As `look_at_topic`; `ApiError`, `NoBroker`."""
    found = await cluster.topic(name)
    keys = [TopicPartition(name, each.partition_index) for each in found.partitions]
    latest = dict.fromkeys(keys, LATEST_TIMESTAMP)
    ends = await list_offsets(cluster, latest, is_committed_only=is_committed_only)
    starts = await find_offsets(cluster, keys, EARLIEST_TIMESTAMP)
    asked = {key: epochs[key.partition] for key in keys if key.partition in epochs}
    offsets = {key.partition: _range(starts[key], ends[key]) for key in keys}
    return Topic(
        name,
        found.topic_id,
        offsets,
        {
            key.partition: end.leader_epoch
            for key, end in ends.items()
            if end is not None and end.leader_epoch != NO_EPOCH
        },
        {key.partition: end for key, end in (await find_epoch_ends(cluster, asked)).items()},
        await _unread(cluster, name, offsets) if is_committed_only else {},
    )


async def _unread(
    cluster: Cluster, name: str, offsets: Mapping[int, OffsetRange]
) -> dict[int, Unread]:
    """What is behind the ends of partitions for those who read committed records only."""
    ends = {TopicPartition(name, number): end for number, (_, end) in offsets.items()}
    high_watermarks = await find_offsets(cluster, ends, LATEST_TIMESTAMP)
    found = {}
    for key, end in ends.items():
        if (count := high_watermarks[key] - end) > 0:
            first = next((await fetch_at(cluster, key, end, 1)).headers(), None)
            if first is not None:
                found[key.partition] = Unread(first.base_timestamp, count)
    return found


def _range(start: int, end: OffsetAndTimestamp | None) -> OffsetRange:
    return OffsetRange(start, max(start, end.offset if end is not None else start))
