"""Commits offsets to the group's coordinator, and reads them back.

A consumer's commits are sent one at a time, so that an older one cannot overwrite a newer one. One
that is sent when the member has another generation than when it was asked for, as it had to be
tried again, leaves out the partitions that were not ours all the time: another member may have
committed more. Source: KIP-320 (leader epochs), KIP-447 (offsets of open transactions are waited
for).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kdist.client.committed import Offsets, commit_request, fetch_request, read_committed
from kdist.client.consumer.arguments import ignore
from kdist.client.consumer.context import ConsumerContext
from kdist.client.consumer.membership import Membership
from kdist.client.consumer.partition import Partition
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import ApiError, Error, KdistError
from kdist.model import TopicPartition
from kdist.protocol import offset_fetch
from kdist.runtime.tasks import raise_bug

logger = logging.getLogger(__name__)

OnCommitted = Callable[[Offsets, KdistError | None], object]

_FENCED = frozenset((Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION, Error.FENCED_INSTANCE_ID))


class CommitFailed(ApiError):
    """The group has rebalanced without this member: others now read its partitions.

    Process fewer records between two polls, or raise `max_poll_interval_ms`.
    """


def log_failure(_: Offsets, error: KdistError | None) -> None:
    """What is called of an auto-commit."""
    if error is not None:
        logger.warning("an auto-commit failed: %s", error)


Member = tuple[str, int] | None
"""A member id and generation; None for who commits from outside the group."""


@dataclass(eq=False)
class Asked:
    """A commit in the queue: what, as whom, behind which other."""

    member: Member
    before: asyncio.Future[None] | None
    done: asyncio.Future[None]
    is_joined: bool  # by what is asked for before it is sent
    left: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    owned: dict[TopicPartition, Partition] = field(default_factory=dict)  # when asked for
    lost: list[TopicPartition] = field(default_factory=list)  # not ours any more, so left out
    told: list[tuple[Offsets, OnCommitted]] = field(default_factory=list)


class Commits:
    """Commits for one group: as its member, or from outside it while nothing is subscribed."""

    def __init__(
        self,
        context: ConsumerContext,
        group_id: str,
        membership: Membership,
        partitions: Mapping[TopicPartition, Partition],
    ) -> None:
        self._context = context
        self._group_id = group_id
        self._membership = membership
        self._partitions = partitions
        self._coordinator = membership.coordinator
        self._last: Asked | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def _member(self) -> Member:
        member = self._membership
        return (member.member_id, member.generation) if member.topics else None

    def _ask(self, offsets: Offsets, *, is_joined: bool = False) -> Asked:
        """Take a place in the queue: commits are sent in the order of these calls."""
        last = self._last
        if last is None or not (is_joined and last.is_joined and last.member == self._member):
            done = self._context.loop.create_future()
            before = None if last is None else last.done
            last = self._last = Asked(self._member, before, done, is_joined)
        last.left |= offsets
        owned = self._partitions
        last.owned |= {each: owned[each] for each in offsets.keys() & owned.keys()}
        return last

    async def commit(self, offsets: Offsets, timeout_s: float | None = None) -> None:
        """Commit, retrying after retriable errors. `CommitFailed`, or `ApiError`.

        The timeout includes the wait for earlier commits.
        """
        await self._commit_in_turn(self._ask(offsets), timeout_s)

    def commit_soon(self, offsets: Offsets, on_committed: OnCommitted) -> None:
        """Commit in the background, then call `on_committed(offsets, error)`.

        Those that wait for an earlier commit are joined: later offsets replace earlier ones, and an
        error is that of all.
        """
        last = self._last
        asked = self._ask(offsets, is_joined=True)
        if on_committed is not ignore:
            asked.told.append((offsets, on_committed))
        if asked is not last:
            task = self._context.loop.create_task(self._commit_and_tell(asked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(raise_bug)

    async def _commit_and_tell(self, asked: Asked) -> None:
        error: KdistError | None = ApiError(Error.REQUEST_TIMED_OUT, "the consumer was closed")
        try:
            await self._commit_in_turn(asked)
            error = None
        except KdistError as refused:
            error = refused
        finally:
            for offsets, on_committed in asked.told:  # each by itself: it may fail
                self._context.loop.call_soon(on_committed, offsets, error)

    async def end(self, timeout_s: float) -> None:
        """Wait for the commits in the background, and cancel those that take longer."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
            self.stop()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _commit_in_turn(self, asked: Asked, timeout_s: float | None = None) -> None:
        context, before = self._context, asked.before
        if timeout_s is None:
            timeout_s = context.settings.default_api_timeout_ms / 1000
        end_s = context.now_s() + timeout_s
        try:
            if before is not None and (await asyncio.wait([before], timeout=timeout_s))[1]:
                sentence = f"group {self._group_id}: an earlier commit is still under way"
                raise ApiError(Error.REQUEST_TIMED_OUT, sentence)
            asked.is_joined = False  # from here on
            if asked.left:
                left_s = end_s - context.now_s()
                gone = await context.retried(lambda: self._commit_left(asked), left_s)
                if gone is not None:
                    raise gone
        finally:
            asked.is_joined, asked.before = False, None
            if before is None or before.done():
                asked.done.set_result(None)
            else:  # later commits must still wait for the earlier one
                before.add_done_callback(lambda _: asked.done.set_result(None))

    def _leave_out_lost(self, asked: Asked) -> None:
        """If this is another generation, leave out what was not ours all the time since."""
        if asked.member != self._member:
            for each in list(asked.left):
                owned = asked.owned.get(each)
                if owned is None or self._partitions.get(each) is not owned:
                    del asked.left[each]
                    asked.lost.append(each)

    async def _commit_left(self, asked: Asked) -> ApiError | None:
        """Commit, and remove from `asked.left` what is committed.

        Returned, as it need not be tried again, is the error if all others are of partitions that
        were lost, or do not exist: deleted while the group still had them. Raises any other error.
        """
        self._leave_out_lost(asked)
        left = asked.left
        refused = await self._commit_once(left) if left else {}
        for key in left.keys() - refused.keys():
            del left[key]
        gone = [key for key, e in refused.items() if e is Error.UNKNOWN_TOPIC_OR_PARTITION]
        if gone:
            gone = await self._not_there(gone)
        for key in sorted(refused.keys() - set(gone), key=lambda key: refused[key].retriable):
            self._coordinator.check(refused[key].code)
        if asked.lost:
            sentence = f"group {self._group_id}: {', '.join(map(str, asked.lost))} left this member"
            return CommitFailed(Error.ILLEGAL_GENERATION, sentence)
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
