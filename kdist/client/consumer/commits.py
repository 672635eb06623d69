"""Committing positions to the group's coordinator, and reading them back.

Commits of one consumer are sent one after the other, so that an older one never overtakes. Source:
KIP-320 (leader epochs), KIP-447 (offsets of open transactions are waited for).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kdist.client.cluster import by_topic
from kdist.client.consumer.coordinator import Coordinator
from kdist.client.consumer.membership import Membership
from kdist.client.consumer.world import World
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import ApiError, Error
from kdist.model import NO_OFFSET, TopicPartition
from kdist.protocol import offset_fetch
from kdist.protocol.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from kdist.protocol.offset_fetch import OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic

_VERSION_OF_MANY = 8  # OffsetFetch: from then on several groups at once
_VERSION_OF_STABLE = 7
_FENCED = frozenset((Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION, Error.FENCED_INSTANCE_ID))


Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class CommitFailed(ApiError):
    """The group has gone on without this member: its partitions are others', who read them again.

    Process less between two polls, or raise `max_poll_interval_ms`.
    """


class Turn(NamedTuple):
    """One commit's place: after which other, and what is done when it is."""

    before: asyncio.Future[None] | None
    done: asyncio.Future[None]


class Commits:
    """Of one group; `membership` None commits from outside of any membership."""

    def __init__(self, world: World, group_id: str, membership: Membership | None) -> None:
        self._world = world
        self._group_id = group_id
        self._membership = membership
        self._coordinator = membership.coordinator if membership else Coordinator(world, group_id)
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
        request = OffsetCommitRequest(group_id=self._group_id, topics=_committed_topics(offsets))
        member = self._membership
        if member is not None and member.topics:
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
        if member is not None and member.is_member:
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
        client = await self._coordinator.client()
        answer = await self._coordinator.ask(
            self._fetch_request(wanted, client.version_of(offset_fetch.API))
        )
        found: Any = answer.groups[0] if answer.groups else answer
        self._coordinator.check(found.error_code)
        committed = {}
        for topic in found.topics:
            for each in topic.partitions:
                key = TopicPartition(topic.name, each.partition_index)
                self._coordinator.check(each.error_code, f"group {self._group_id}, {key}")
                if each.committed_offset != NO_OFFSET:
                    committed[key] = OffsetAndMetadata(
                        each.committed_offset, each.metadata or "", each.committed_leader_epoch
                    )
        return committed

    def _fetch_request(self, wanted: list[TopicPartition], version: int) -> OffsetFetchRequest:
        topics = [
            OffsetFetchTopic(name=name, partition_indexes=numbers)
            for name, numbers in by_topic(wanted).items()
        ]
        is_stable = version >= _VERSION_OF_STABLE
        if version >= _VERSION_OF_MANY:
            group = OffsetFetchGroup(group_id=self._group_id, topics=topics)
            return OffsetFetchRequest(groups=[group], require_stable=is_stable)
        return OffsetFetchRequest(group_id=self._group_id, topics=topics, require_stable=is_stable)


def _committed_topics(offsets: Offsets) -> list[OffsetCommitTopic]:
    return [
        OffsetCommitTopic(
            name=name,
            partitions=[
                _committed_partition(number, offsets[TopicPartition(name, number)])
                for number in numbers
            ],
        )
        for name, numbers in by_topic(offsets).items()
    ]


def _committed_partition(number: int, given: OffsetAndMetadata) -> OffsetCommitPartition:
    return OffsetCommitPartition(
        partition_index=number,
        committed_offset=given.offset,
        committed_leader_epoch=given.leader_epoch,
        committed_metadata=given.metadata,
    )
