"""The consumer's core, which both fronts drive: its parts on one loop, and the work of a poll.

The fronts (`consumer`, `aio`) call `ready`, then take records from `completed` themselves. All else
here runs on the loop. A position is that of the next record to return; commits default to it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from kdist.client.cluster import MISSING_S, Address
from kdist.client.coding import Coder
from kdist.client.committed import Offsets
from kdist.client.consumer.arguments import (
    ToCommit,
    check_callable,
    check_listener,
    check_offset,
    checked_names,
    checked_partitions,
    checked_times,
    checked_topics,
    found_offsets,
    ignore,
    to_commit,
)
from kdist.client.consumer.commits import Commits, OnCommitted, log_failure
from kdist.client.consumer.context import ConsumerClosed, ConsumerContext, WakenUp
from kdist.client.consumer.fetcher import Fetcher, OffsetOutOfRange
from kdist.client.consumer.interceptors import ConsumerInterceptors
from kdist.client.consumer.iteration import Iteration
from kdist.client.consumer.membership import Membership
from kdist.client.consumer.metadata import Metadata
from kdist.client.consumer.partition import CompletedFetches, Partition
from kdist.client.consumer.positions import NoOffset, Positions
from kdist.client.consumer.rebalancing import RebalanceListener, Rebalancing, Tell
from kdist.client.consumer.settings import NO_HOOKS, ConsumerSettings, Hooks
from kdist.client.offsets import (
    TIMESTAMPS,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    list_offsets,
)
from kdist.client.operation import check_timeout
from kdist.config.times import check_time
from kdist.errors import ApiError, Error, KdistError, UserError
from kdist.model import NO_EPOCH, NO_OFFSET, TopicPartition
from kdist.network.network import Network
from kdist.runtime.unix import keep_freed_blocks

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 30.0
_COMMIT_AT_END_S = 5.0  # before partitions are revoked, or the consumer is closed
_LOOK_AGAIN_S = 1.0
_MISSING_S = 0.5  # for a topic that is being created: a person waits to hear of a misspelt one
_RUN_S = 0.1


class Core:
    """Owner: the loop, except for `completed`. `close` it when done."""

    def __init__(
        self,
        network: Network,
        bootstrap: Sequence[Address],
        settings: ConsumerSettings,
        rng: random.Random,
        decoders: tuple[Coder | None, Coder | None],
        tell: Tell,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        keep_freed_blocks()
        self.settings = settings
        self.context = ConsumerContext(network, bootstrap, settings, rng)
        self.partitions: dict[TopicPartition, Partition] = {}
        self.meter = self.context.meter
        self.meter.show(self.partitions)
        self.interceptors: ConsumerInterceptors | None = None
        if hooks.interceptors:
            self.interceptors = ConsumerInterceptors(hooks.interceptors, network.loop.time)
            self.context.on_committed = self.interceptors.on_commit
        every_s = settings.statistics_interval_ms / 1000
        self.meter.start_telling(network.loop, every_s, hooks.on_statistics)
        self.completed = CompletedFetches()
        self.iteration = Iteration()
        self.subscribed: frozenset[str] = frozenset()
        self.is_waking = False
        self.is_closing = False
        self.is_watching = False  # `watch_runs` looks at what is iterated
        self._watched: object = None
        self._commit_at_s = float("inf")
        # A long poll wakes up this often, to count as polling and to auto-commit.
        self._look_again_s = min(_LOOK_AGAIN_S, settings.max_poll_interval_ms / 3000)
        self.metadata = Metadata(self.context, self._topics_changed, self._recreated)
        self.membership: Membership | None = None
        self.rebalancing: Rebalancing | None = None
        self.commits: Commits | None = None
        if settings.group_id is not None:
            self.membership = Membership(self.context, settings.group_id, self.metadata.count)
            self.commits = Commits(
                self.context, settings.group_id, self.membership, self.partitions
            )
            self.meter.own.last_poll_seconds = self.membership.silent_s
            self.rebalancing = Rebalancing(
                self.context, self.membership, self.partitions, tell, self._commit_before_rebalance
            )
        self._fetcher = Fetcher(
            self.context, self.metadata, self.partitions, self.completed, decoders, self.kick
        )
        self._positions = Positions(self.context, self.partitions, self.commits, self.kick)

    # What is read

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Read these topics, or all whose whole names match a pattern, as a member of the group.

        A new call replaces the last. `listener` is called on rebalances, within `poll`. Raises
        `UserError` without a `group_id`, or while partitions are assigned by hand.
        """
        check_listener(listener, RebalanceListener)
        topics = checked_topics(topics)
        if self.membership is None or self.rebalancing is None:
            raise UserError("subscribing needs a group_id; without one, assign partitions")
        if self.partitions and not self._is_subscribed:
            raise UserError("partitions are assigned manually: unsubscribe first")
        self.rebalancing.listener = listener or RebalanceListener()
        if isinstance(topics, re.Pattern):
            self.metadata.pattern, self.metadata.wanted = topics, set()
            self.metadata.matched = frozenset()
        else:
            names = checked_names(topics)
            self.metadata.pattern, self.metadata.wanted = None, names
            self._want(frozenset(names))
        self.metadata.start()

    @property
    def _is_subscribed(self) -> bool:
        return bool(self.subscribed) or self.metadata.pattern is not None

    def _want(self, topics: frozenset[str]) -> None:
        assert self.membership is not None
        if topics != self.subscribed or not self.membership.is_member:
            self.subscribed = self.membership.topics = topics
            self.membership.want_join()
            self._schedule_commit()

    def _topics_changed(self) -> None:
        """Called on fresh metadata: rejoin if topics or partition counts have changed."""
        member = self.membership
        if self.metadata.pattern is not None and self.metadata.matched != self.subscribed:
            self._want(self.metadata.matched)
        elif member is not None and member.group_counts is not None:
            now = {t: self.metadata.counts.get(t, n) for t, n in member.group_counts.items()}
            wanted = self.subscribed | self.metadata.counted
            now |= {t: self.metadata.counts[t] for t in wanted & self.metadata.counts.keys()}
            if now != member.group_counts:
                member.group_counts = None
                member.want_join()
        else:
            self.metadata.counted = set()  # another member leads the group, or a join will set it
        self.kick()

    def _recreated(self, topic: str) -> None:
        """The topic is another one of its name, whose log begins anew."""
        for partition in self.partitions.values():
            if partition.key.topic == topic and not partition.is_missing:
                partition.is_former = True

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without group management.

        Those that stay keep their positions. `UserError` while topics are subscribed.
        """
        wanted = checked_partitions(partitions)
        self.iteration.settle()
        if self._is_subscribed:
            raise UserError("topics are subscribed: unsubscribe first")
        for gone in set(self.partitions) - set(wanted):
            self.partitions.pop(gone).is_revoked = True
        for each in wanted:
            if each not in self.partitions:
                self.partitions[each] = Partition(each, self.meter.topics[each.topic,])
        self.metadata.wanted = {each.topic for each in wanted}
        if wanted:
            self.metadata.start()
            self._schedule_commit()
        self.give_back()

    async def unsubscribe(self) -> None:
        """Drop all topics and partitions, and leave the group."""
        self.iteration.drop()
        if self.rebalancing is not None and self._is_subscribed:
            await self.rebalancing.leave()
        for partition in self.partitions.values():
            partition.is_revoked = True
        self.partitions.clear()
        self.metadata.pattern, self.metadata.wanted = None, set()
        self.subscribed = frozenset()
        if self.membership is not None:
            self.membership.topics = self.subscribed
            self.membership.group_counts, self.metadata.counted = None, set()

    # Polling

    @property
    def is_calm(self) -> bool:
        """Whether a poll may return what is ready without the loop. From any thread."""
        return (
            not self.context.is_troubled
            and not self.is_waking
            and not self.is_closing
            and (self.rebalancing is None or self.rebalancing.is_quiet)
            and self.context.now_s() < self._commit_at_s
        )

    def note_poll(self) -> None:
        """Note that the application has polled, for `max_poll_interval_ms`."""
        if self.membership is not None:
            self.membership.polled_at_s = self.context.now_s()

    async def ready(self, timeout_s: float | None) -> None:
        """Do a poll's work until records are ready, or time is up (None: no limit).

        Raises an error reported since the last poll, `WakenUp`, `ConsumerClosed`, and what
        listeners raise.
        """
        end_s = None if timeout_s is None else self.context.now_s() + timeout_s
        while True:
            if self.is_closing:
                raise ConsumerClosed
            self.note_poll()
            if self.is_waking:
                self.is_waking = False
                raise WakenUp("the poll was woken up")
            self.context.raise_trouble()
            self.context.wakeup.clear()
            self.iteration.pause()
            if self.rebalancing is not None:
                await self.rebalancing.take_part()
            self._maybe_commit()
            self.kick()
            left_s = self._look_again_s
            if end_s is not None:
                left_s = min(left_s, end_s - self.context.now_s())
            if self.iteration.is_held or not self.completed.is_empty or left_s <= 0:
                return
            await self.context.wakeup.wait(left_s)

    def take_run(self) -> bool:
        """Have `iteration` yield the rest of its run, or the next one; whether there is any."""
        partition = self.iteration.go_on()
        if partition is not None:
            self.completed.go_on(partition)
            return True
        partition, records = self.completed.take_run(self.settings.max_poll_records)
        if partition is not None:
            self.iteration.begin(partition, records)
        return partition is not None

    def watch_runs(self) -> None:
        """Hold runs that are older than `_RUN_S`, while there are any.

        So a loop that is slow asks for its next record as by a poll, though iteration does no work
        for each record.
        """
        is_old, self._watched = self._watched is self.iteration.left, self.iteration.left
        self.is_watching = not (is_old or self.is_closing)
        if is_old:
            self.iteration.hold()
        elif self.is_watching:
            self.context.loop.call_later(_RUN_S, self.watch_runs)

    def take_back(self) -> None:
        """After an interrupted take: return again what did not reach the caller."""
        self.give_back()
        self.completed.take_back()

    def kick(self) -> None:
        """Look up missing positions, and fetch what can be fetched."""
        self._positions.kick()
        self._fetcher.kick()
        if not self.completed.is_empty:
            self.context.wakeup.set()

    def wake_up(self) -> None:
        self.is_waking = True
        self.context.wakeup.set()

    # Positions

    def partition(self, key: TopicPartition) -> Partition:
        """The state of an assigned partition; `UserError` for any other."""
        (key,) = checked_partitions([key])
        if key not in self.partitions:
            raise UserError(f"{key} is not assigned to this consumer")
        return self.partitions[key]

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        """Continue from `offset`; the `leader_epoch` beside it detects truncation (KIP-320)."""
        check_offset(offset, leader_epoch)
        found = self.partition(partition)
        self.iteration.drop([found.key])
        found.seek(offset, leader_epoch)
        self._forgive(found.key)
        self.kick()

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue from the first record of these partitions; of all assigned if none is named."""
        self._seek_to("earliest", partitions)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue from the end of these partitions; of all assigned if none is named."""
        self._seek_to("latest", partitions)

    def _seek_to(self, to: str, keys: Iterable[TopicPartition]) -> None:
        """Continue from the first offset or the end, which is looked up in the background."""
        for partition in self._named(keys):
            self.iteration.drop([partition.key])
            partition.reset(to)
            self._forgive(partition.key)
        self.kick()

    def _named(self, keys: Iterable[TopicPartition]) -> list[Partition]:
        """These assigned partitions; all of them if none is named."""
        return [self.partition(key) for key in keys] or list(self.partitions.values())

    def _forgive(self, key: TopicPartition) -> None:
        """Drop a reported error about a position that the partition no longer has."""
        self.context.forgive(
            lambda error: isinstance(error, OffsetOutOfRange | NoOffset) and error.partition == key
        )

    async def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Continue from the first record at or after a time (ms), or the end if there is none.

        In these partitions; in all assigned if none is named.
        """
        check_time(timestamp_ms)
        wanted = [each.key for each in self._named(partitions)]
        found = await self.list_offsets(dict.fromkeys(wanted, timestamp_ms))
        for key, offset in found.items():
            if offset is None:
                self.seek_to_end(key)
            else:
                self.seek(key, offset.offset, offset.leader_epoch)

    async def position(self, partition: TopicPartition, timeout_s: float | None = None) -> int:
        """The offset of the next record to be returned.

        It may have to be looked up: `ApiError` REQUEST_TIMED_OUT after `timeout_s` (None:
        `default_api_timeout_ms`), UNKNOWN_TOPIC_OR_PARTITION soon if the topic was deleted.
        """
        check_timeout(timeout_s)
        found = self.partition(partition)
        self.iteration.settle()
        if timeout_s is None:
            timeout_s = self.settings.default_api_timeout_ms / 1000
        end_s = self.context.now_s() + timeout_s
        if found.is_missing:
            self.metadata.refresh()
        while found.is_missing:
            self.context.raise_trouble()
            self._raise_if_deleted(found.key.topic)
            self._positions.kick()
            if self.context.now_s() >= end_s:
                raise ApiError(Error.REQUEST_TIMED_OUT, f"the position of {found.key}")
            await self.context.back_off()
        assert found.position is not None
        return found.position

    def _raise_if_deleted(self, topic: str) -> None:
        since_s = self.metadata.missing_since_s.get(topic)
        if since_s is not None and since_s + MISSING_S <= self.context.now_s():
            raise ApiError(
                Error.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist any more"
            )

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Where the records end that may be read, as the last fetch said; None before the first.

        With `isolation_level` read_committed, that is the last stable offset.
        """
        found = self.partition(partition)
        is_stable = self.settings.is_committed_only
        end = found.last_stable_offset if is_stable else found.high_watermark
        return None if end == NO_OFFSET else end

    def lag(self, partition: TopicPartition) -> int | None:
        """How far the position is behind `high_watermark`; None if either is not known.

        Records that were deleted from before the log's start do not count.
        """
        end = self.high_watermark(partition)
        found = self.partition(partition)
        self.iteration.settle()
        if end is None or found.position is None or found.is_missing:
            return None
        return max(0, end - max(found.position, found.log_start_offset))

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these until `resume`; they stay assigned, and keep what is ready."""
        found = [self.partition(key) for key in partitions]
        if found:
            self.give_back([each.key for each in found])
        self._set_paused(found, is_paused=True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these again."""
        self._set_paused([self.partition(key) for key in partitions], is_paused=False)

    def _set_paused(self, partitions: Iterable[Partition], *, is_paused: bool) -> None:
        for partition in partitions:
            partition.is_paused = is_paused
            self.completed.offer(partition)
        self.kick()

    def give_back(self, partitions: Collection[TopicPartition] = ()) -> None:
        """Put back the records that iteration took and has not yielded yet; () means of any."""
        dropped = self.iteration.drop(partitions)
        if dropped is not None and not dropped[0].is_revoked:
            partition, rest = dropped
            partition.give_back(rest)
            self.completed.offer(partition)

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(each.key for each in self.partitions.values() if each.is_paused)

    async def list_offsets(
        self, timestamps: dict[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """As `offsets.list_offsets`, for any partitions, at this consumer's isolation level."""
        return await list_offsets(
            self.context.cluster,
            timestamps,
            is_committed_only=self.settings.is_committed_only,
            missing_s=_MISSING_S,
        )

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (ms); None where there is none."""
        return await self.list_offsets(checked_times(timestamps_ms))

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition (its log start offset)."""
        return await self._ends("earliest", partitions)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The end offset of each partition: its high watermark, or its last stable offset with
        `isolation_level` read_committed.
        """
        return await self._ends("latest", partitions)

    async def _ends(
        self, which: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(checked_partitions(partitions), TIMESTAMPS[which])
        return found_offsets(await self.list_offsets(wanted))

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """A topic's partitions, in order; `UserError`, with the nearest name, if it does not exist.

        They may be given to `assign`.
        """
        (name,) = checked_names([topic])
        found = await self.context.cluster.topic(name)
        return [TopicPartition(name, each.partition_index) for each in found.partitions]

    # Committing

    def positions(self, partitions: Iterable[Partition] | None = None) -> Offsets:
        """The positions, as offsets to commit; of all partitions by default.

        None of those in a former topic: the new one may have other records there.
        """
        return {
            each.key: OffsetAndMetadata(each.position, "", each.position_epoch)
            for each in (self.partitions.values() if partitions is None else partitions)
            if each.position is not None and not (each.is_missing or each.is_former)
        }

    async def commit(self, offsets: ToCommit | None = None, timeout_s: float | None = None) -> None:
        """Commit offsets, by default the current positions; returns when they are committed.

        An offset is a number, or an `OffsetAndMetadata`. Raises `CommitFailed` if the group has
        rebalanced without this member, `ApiError` for an error that outlasts `timeout_s` (None:
        `default_api_timeout_ms`) or is not retriable. If that is of partitions that no longer
        exist, the offsets of the others are committed.
        """
        check_timeout(timeout_s)
        checked = self._to_commit(offsets)
        await self._group_commits().commit(checked, timeout_s)
        self.completed.note_done(checked)

    def commit_async(
        self, offsets: ToCommit | None = None, on_committed: OnCommitted = ignore
    ) -> None:
        """Commit in the background; calls `on_committed(offsets, error)` there when done.

        Calls that wait for an earlier commit are joined: later offsets replace earlier ones, and an
        error is that of all.
        """
        check_callable(on_committed, "on_committed")
        checked = self._to_commit(offsets)
        self._group_commits().commit_soon(checked, on_committed)
        self.completed.note_done(checked)

    def _to_commit(self, offsets: ToCommit | None) -> Offsets:
        checked = to_commit(offsets)
        self.iteration.settle()
        return self.positions() if checked is None else checked

    def _group_commits(self) -> Commits:
        if self.commits is None:
            raise UserError("committed offsets belong to a group: give a group_id")
        return self.commits

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The offsets that the group has committed; None where it has none."""
        check_timeout(timeout_s)
        return await self._group_commits().committed(checked_partitions(partitions), timeout_s)

    def _schedule_commit(self) -> None:
        if self.settings.enable_auto_commit and self.commits is not None:
            self._commit_at_s = self.context.now_s() + self.settings.auto_commit_interval_ms / 1000

    def _maybe_commit(self) -> None:
        is_quiet = self.rebalancing is None or self.rebalancing.is_quiet
        if is_quiet and self.context.now_s() >= self._commit_at_s:  # refused during a rebalance
            self._schedule_commit()
            if self.partitions:
                offsets = self._positions_to_commit(self.partitions.values())
                self._group_commits().commit_soon(offsets, log_failure)

    def _positions_to_commit(self, partitions: Iterable[Partition]) -> Offsets:
        """Without those of partitions of which the listener may yet choose the positions."""
        return self.positions(each for each in partitions if not each.is_new)

    async def _commit_before_rebalance(self, partitions: Collection[Partition]) -> None:
        if not self.settings.enable_auto_commit:
            return
        try:
            offsets = self._positions_to_commit(partitions)
            await self._group_commits().commit(offsets, _COMMIT_AT_END_S)
        except KdistError as error:
            log_failure({}, error)  # the next owner will read these records again

    # The end

    async def close(self, timeout_s: float, *, is_done: bool = True) -> None:
        """Commit if auto-commit is on, leave the group, close all connections.

        Unless `is_done`, the records given last are not committed. A waiting poll raises
        `ConsumerClosed`; listeners may use the consumer until the end.
        """
        self.is_closing = True
        last = self.iteration.last_given()
        self.iteration.drop()
        if not is_done:
            self.completed.step_back(last)
        self.context.wakeup.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._finish()
        except TimeoutError:
            logger.warning("could not leave the group in time: its session will time out")
        finally:
            self._fetcher.stop()
            self._positions.stop()
            self.metadata.stop()
            if self.membership is not None:
                self.membership.stop_beating()
            if self.commits is not None:
                self.commits.stop()
            self.context.close()
            self.partitions.clear()
            self.meter.stop_telling()
            if self.interceptors is not None:
                self.interceptors.close()

    async def _finish(self) -> None:
        if self.commits is not None:
            await self.commits.end(_COMMIT_AT_END_S)
        if self.rebalancing is not None and self._is_subscribed:
            await self.rebalancing.leave()
        elif self.commits is not None and self.partitions:
            await self._commit_before_rebalance(self.partitions.values())
