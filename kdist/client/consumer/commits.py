"""Committing positions to the group's coordinator, and reading them back.

Commits of one consumer are sent one after the other, so that an older one never overtakes. Source:
KIP-320 (leader epochs), KIP-447 (offsets of open transactions are waited for).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from kdist.client.committed import Offsets, commit_request, fetch_request, read_committed
from kdist.client.consumer.membership import Membership
from kdist.client.consumer.world import World
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.protocol import offset_fetch

_FENCED = frozenset((Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION, Error.FENCED_INSTANCE_ID))


class CommitFailed(ApiError):
    """The group has gone on without this member: its partitions are others', who read them again.

    Process less between two polls, or raise `max_poll_interval_ms`.
    """


class Turn(NamedTuple):
    """One commit's place: after which other, and what is done when it is."""

    before: asyncio.Future[None] | None
    done: asyncio.Future[None]


class Commits:
    """Of one group: by its member, or as somebody outside of it while nothing is subscribed."""

    def __init__(self, world: World, group_id: str, membership: Membership) -> None:
        self._world = world
        self._group_id = group_id
        self._membership = membership
        self._coordinator = membership.coordinator
        self._last: asyncio.Future[None] | None = None  # done when the commit before is

    def take_turn(self) -> Turn:
        """A place in the row: commits are sent in the order in which they took theirs."""
        before, self._last = self._last, self._world.loop.create_future()
        return Turn(before, self._last)

    async def commit(
        self, offsets: Offsets, timeout_s: float | None = None, turn: Turn | None = None
    ) -> None:
        """Commit, trying again what may pass. `CommitFailed`, or `ApiError`.

        Time passes from the call on, also while an earlier commit is under way.
        """
        world, (before, done) = self._world, turn or self.take_turn()
        if timeout_s is None:
            timeout_s = world.settings.default_api_timeout_ms / 1000
        end_s = world.now_s() + timeout_s
        try:
            if before is not None and (await asyncio.wait([before], timeout=timeout_s))[1]:
                sentence = f"group {self._group_id}: an earlier commit is still under way"
                raise ApiError(Error.REQUEST_TIMED_OUT, sentence)
            if offsets:
                await world.retried(lambda: self._commit_once(offsets), end_s - world.now_s())
        finally:
            if before is None or before.done():
                done.set_result(None)
            else:  # who comes later still waits for it
                before.add_done_callback(lambda _: done.set_result(None))

    async def _commit_once(self, offsets: Offsets) -> None:
        request = commit_request(self._group_id, offsets)
        member = self._membership
        if member.topics:
            if not member.is_member:
                # As an outsider's it might be taken, while the partitions are others'.
                raise CommitFailed(Error.UNKNOWN_MEMBER_ID, f"not in group {self._group_id}")
            request.generation_id = member.generation
            request.member_id = member.member_id
            request.group_instance_id = self._world.settings.group_instance_id
        answer = await self._coordinator.ask(request)
        codes = {each.error_code for topic in answer.topics for each in topic.partitions}
        fenced = _FENCED & {Error.of(code) for code in codes}
        if fenced:
            self._fenced(min(fenced), request.generation_id)
        for code in sorted(codes, key=lambda code: Error.of(code).retriable):
            self._coordinator.check(code)

    def _fenced(self, error: Error, generation: int) -> None:
        member = self._membership
        if member.is_member:
            if error is Error.ILLEGAL_GENERATION and not member.is_settled_in(generation):
                # The group has gone on, and this member with it: the next poll will tell.
                raise ApiError(Error.REBALANCE_IN_PROGRESS, f"group {self._group_id}")
            member.fenced(error)
        raise CommitFailed(error, f"group {self._group_id}: {error.sentence}")

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What is committed for each; None for nothing."""
        wanted = list(partitions)
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(wanted)
        if wanted:
            found.update(await self._world.retried(lambda: self._committed_once(wanted), timeout_s))
        return found

    async def _committed_once(
        self, wanted: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        version = (await self._coordinator.client()).version_of(offset_fetch.API)
        request = fetch_request(self._group_id, version, wanted, is_stable=True)
        answer = await self._coordinator.ask(request)
        return read_committed(answer, self._group_id, self._coordinator.check)
