"""The application's side of rebalances: revokes and assigns partitions, and calls the listener.

All of it happens within `poll`, so that the partitions of one poll's records stay assigned until
the next. Eager members revoke everything before they join. Cooperative ones keep reading, revoke
what the new assignment lacks, then join again so that others can take it over (KIP-429). With
`enable_auto_commit`, positions are committed before partitions are revoked.

No record of a partition is returned before the listener has been told that it is assigned. If that
was cut short, by an error or as the poll was cancelled, the listener is told again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from kdist.client.consumer.context import ConsumerContext
from kdist.client.consumer.membership import Membership
from kdist.client.consumer.partition import Partition
from kdist.model import TopicPartition

_REBALANCE_S = 5.0  # how long a leaving member waits for a rebalance in progress

Partitions = Collection[TopicPartition]


class RebalanceListener:
    """Called on a group's rebalances, within `poll`. Override the methods you need.

    They may use the consumer: commit, seek, pause. With `kdist.aio` they may be coroutines.
    """

    def on_assigned(self, partitions: Partitions) -> object:
        """These were added; partitions assigned before and not revoked stay assigned."""

    def on_revoked(self, partitions: Partitions) -> object:
        """These are being revoked: the last moment to commit offsets for them."""

    def on_lost(self, partitions: Partitions) -> object:
        """These were lost, and others may read them already. By default calls `on_revoked`."""
        return self.on_revoked(partitions)


Tell = Callable[[Callable[[Partitions], object], Partitions], Awaitable[None]]
"""Calls a listener's method in the application's thread, or on its event loop."""

CommitFor = Callable[[Collection[Partition]], Awaitable[None]]


class Rebalancing:
    """Owner: the loop. `partitions` are the assigned ones, which this keeps up to date."""

    def __init__(
        self,
        context: ConsumerContext,
        membership: Membership,
        partitions: dict[TopicPartition, Partition],
        tell: Tell,
        commit_for: CommitFor,
    ) -> None:
        self.listener = RebalanceListener()
        self._context = context
        self._membership = membership
        self._partitions = partitions
        self._tell = tell
        self._commit_for = commit_for
        self._joining: asyncio.Task[tuple[TopicPartition, ...]] | None = None
        self._is_taking_part = False
        self._is_leaving = False

    @property
    def is_quiet(self) -> bool:
        """Whether no rebalance is in progress or due."""
        member = self._membership
        return not (member.must_join or member.is_lost or self._joining)

    async def take_part(self) -> None:
        """Advance a rebalance as far as it can go now; `wakeup` is set when it can go further.

        Of several polls one takes part. The others do not wait: a listener may be one of them.
        """
        if not (self._is_taking_part or self._is_leaving):
            self._is_taking_part = True
            try:
                await self._take_part()
            finally:
                self._is_taking_part = False

    async def _take_part(self) -> None:
        if self._membership.is_lost:
            await self._lose()
        if self._joining is None and self._membership.must_join:
            await self._prepare()
            if self._is_leaving or not self._membership.must_join:
                return  # another task has left the group meanwhile
            self._joining = self._context.loop.create_task(self._membership.join())
            self._joining.add_done_callback(lambda _: self._context.wakeup.set())
        if self._joining is not None and self._joining.done():
            joined, self._joining = self._joining, None
            try:
                await self._take(joined.result())
                self._context.meter.own.rebalances += 1
            except BaseException:
                # The join failed, or a listener's error or a cancelled poll cut this short, and
                # nobody would read the assigned partitions. So the next poll joins again.
                self._membership.want_join()
                raise

    async def _prepare(self) -> None:
        """Before joining: revoke everything, or if cooperative, what is no longer subscribed.

        And what was already being revoked when a poll was cut short.
        """
        topics = self._membership.topics
        gone = [
            key
            for key, partition in self._partitions.items()
            if not self._membership.is_cooperative
            or key.topic not in topics
            or partition.is_revoked
        ]
        if gone:
            await self._give_back(gone)
        elif self._partitions:
            await self._commit_for(self._partitions.values())

    async def _take(self, assigned: tuple[TopicPartition, ...]) -> None:
        gone = [each for each in self._partitions if each not in assigned]
        if gone:
            await self._give_back(gone)
            if self._is_leaving or not self._membership.is_member:
                return
            self._membership.want_join()
        topics = self._context.meter.topics
        added = {
            each: Partition(each, topics[each.topic,])
            for each in assigned
            if each not in self._partitions
        }
        for each in added.values():
            each.is_new = True
        self._partitions.update(added)
        self._membership.owned = tuple(self._partitions)
        new = [each for each in self._partitions.values() if each.is_new]
        await self._tell(self.listener.on_assigned, [each.key for each in new])
        for each in new:
            each.is_new = False

    async def _give_back(self, gone: Collection[TopicPartition]) -> None:
        leaving = [self._partitions[each] for each in gone]
        for partition in leaving:
            partition.is_revoked = True
            partition.drop_ready()
        await self._commit_for(leaving)
        told = [each for each in leaving if not each.is_told]
        for partition in told:
            partition.is_told = True
        try:
            if told:
                await self._tell(self.listener.on_revoked, [each.key for each in told])
        finally:
            self._drop(leaving)

    async def _lose(self) -> None:
        self._membership.is_lost = False
        gone = list(self._partitions.values())
        self._context.meter.own.lost_partitions += len(gone)
        for partition in gone:
            partition.is_revoked = partition.is_told = True
            partition.drop_ready()
        try:
            if gone:
                await self._tell(self.listener.on_lost, [each.key for each in gone])
        finally:
            self._drop(gone)

    def _drop(self, gone: Collection[Partition]) -> None:
        for each in gone:
            if self._partitions.get(each.key) is each:  # it may have been assigned by hand since
                del self._partitions[each.key]
        self._membership.owned = tuple(self._partitions)

    async def leave(self) -> None:
        """Revoke all partitions and leave the group, though others may be taking part in it."""
        self._is_leaving = True
        try:
            await self._leave()
        finally:
            self._is_leaving = False

    async def _leave(self) -> None:
        if self._joining is not None:
            joining, self._joining = self._joining, None
            try:
                if self._partitions:  # commits for them are refused until the rebalance ends
                    await asyncio.wait([joining], timeout=_REBALANCE_S)
            finally:
                joining.cancel()
                await asyncio.gather(joining, return_exceptions=True)
        try:
            if self._membership.is_lost:
                await self._lose()
            if self._partitions:
                await self._give_back(list(self._partitions))
        finally:
            self._membership.must_join = False
            await self._membership.leave("the consumer was closed")
