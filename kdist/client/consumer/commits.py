"""Commits offsets to the group's coordinator, and reads them back.

A consumer's commits are sent one at a time, so that an older one cannot overwrite a newer one.
Source: KIP-320 (leader epochs), KIP-447 (offsets of open transactions are waited for).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from kdist.client.committed import Offsets, commit_request, fetch_request, read_committed
from kdist.client.consumer.context import ConsumerContext
from kdist.client.consumer.membership import Membership
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.protocol import offset_fetch

_FENCED = frozenset((Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION, Error.FENCED_INSTANCE_ID))


class CommitFailed(ApiError):
    """The group has rebalanced without this member: others now read its partitions.

    Process fewer records between two polls, or raise `max_poll_interval_ms`.
    """


class Turn(NamedTuple):
    """A commit's place in the queue: the commit to wait for, and the future to set when done."""

    before: asyncio.Future[None] | None
    done: asyncio.Future[None]


class Commits:
    """Commits for one group: as its member, or from outside it while nothing is subscribed."""

    def __init__(self, context: ConsumerContext, group_id: str, membership: Membership) -> None:
        self._context = context
        self._group_id = group_id
        self._membership = membership
        self._coordinator = membership.coordinator
        self._last: asyncio.Future[None] | None = None  # done when the latest commit is

    def take_turn(self) -> Turn:
        """Take a place in the queue: commits are sent in the order of these calls."""
        before, self._last = self._last, self._context.loop.create_future()
        return Turn(before, self._last)

    async def commit(
        self, offsets: Offsets, timeout_s: float | None = None, turn: Turn | None = None
    ) -> None:
        """Commit, retrying after retriable errors. `CommitFailed`, or `ApiError`.

        The timeout includes the wait for earlier commits.
        """
        context, (before, done) = self._context, turn or self.take_turn()
        if timeout_s is None:
            timeout_s = context.settings.default_api_timeout_ms / 1000
        end_s = context.now_s() + timeout_s
        try:
            if before is not None and (await asyncio.wait([before], timeout=timeout_s))[1]:
                sentence = f"group {self._group_id}: an earlier commit is still under way"
                raise ApiError(Error.REQUEST_TIMED_OUT, sentence)
            if offsets:
                left = dict(offsets)
                left_s = end_s - context.now_s()
                gone = await context.retried(lambda: self._commit_left(left), left_s)
                if gone is not None:
                    raise gone
        finally:
            if before is None or before.done():
                done.set_result(None)
            else:  # later commits must still wait for the earlier one
                before.add_done_callback(lambda _: done.set_result(None))

    async def _commit_left(self, left: dict[TopicPartition, OffsetAndMetadata]) -> ApiError | None:
        """Commit, and remove from `left` what is committed.

        Returned, as it need not be tried again, is the error if all others are of partitions that
        do not exist: deleted while the group still had them. Raises any other error.
        """
        refused = await self._commit_once(left)
        for key in left.keys() - refused.keys():
            del left[key]
        gone = [key for key, e in refused.items() if e is Error.UNKNOWN_TOPIC_OR_PARTITION]
        if gone:
            gone = await self._not_there(gone)
        for key in sorted(refused.keys() - set(gone), key=lambda key: refused[key].retriable):
            self._coordinator.check(refused[key].code)
        if not gone:
            return None
        sentence = f"group {self._group_id}: there is no {', no '.join(map(str, gone))} any more"
        return ApiError(Error.UNKNOWN_TOPIC_OR_PARTITION, sentence)

    async def _not_there(self, doubtful: list[TopicPartition]) -> list[TopicPartition]:
        """Those that the brokers' metadata lacks too: a coordinator hears late of new topics."""
        answer = await self._context.cluster.metadata({each.topic for each in doubtful})
        is_there = {
            topic.name: {each.partition_index for each in topic.partitions}
            for topic in answer.topics
            if topic.error_code in (0, Error.UNKNOWN_TOPIC_OR_PARTITION)
        }
        return [k for k in doubtful if k.partition not in is_there.get(k.topic, {k.partition})]

    async def _commit_once(self, offsets: Offsets) -> dict[TopicPartition, Error]:
        """Send a commit; the errors of the partitions that were refused. `CommitFailed`."""
        request = commit_request(self._group_id, offsets)
        member = self._membership
        if member.topics:
            if not member.is_member:
                # A commit from outside might be accepted, although others own the partitions.
                raise CommitFailed(Error.UNKNOWN_MEMBER_ID, f"not in group {self._group_id}")
            request.generation_id = member.generation
            request.member_id = member.member_id
            request.group_instance_id = self._context.settings.group_instance_id
        answer = await self._coordinator.ask(request)
        refused = {
            TopicPartition(topic.name, each.partition_index): Error.of(each.error_code)
            for topic in answer.topics
            for each in topic.partitions
            if each.error_code
        }
        self._context.meter.own.refused_commits += bool(refused)
        if accepted := {key: each for key, each in offsets.items() if key not in refused}:
            self._context.on_committed(accepted)
        fenced = _FENCED.intersection(refused.values())
        if fenced:
            self._fenced(min(fenced), request.generation_id)
        return refused

    def _fenced(self, error: Error, generation: int) -> None:
        member = self._membership
        if member.is_member:
            if error is Error.ILLEGAL_GENERATION and not member.is_settled_in(generation):
                # This member has rejoined, or is rejoining: the next poll takes part in that.
                raise ApiError(Error.REBALANCE_IN_PROGRESS, f"group {self._group_id}")
            member.fenced(error)
        raise CommitFailed(error, f"group {self._group_id}: {error.sentence}")

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offset of each partition; None where there is none."""
        wanted = list(partitions)
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(wanted)
        if wanted:
            found.update(
                await self._context.retried(lambda: self._committed_once(wanted), timeout_s)
            )
        return found

    async def _committed_once(
        self, wanted: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        version = (await self._coordinator.client()).version_of(offset_fetch.API)
        request = fetch_request(self._group_id, version, wanted, is_stable=True)
        answer = await self._coordinator.ask(request)
        return read_committed(answer, self._group_id, self._coordinator.check)
