"""Group membership as the coordinator sees it: joining, heartbeats, removal, leaving.

    OUT -- join --> JOINING --> STABLE -- REBALANCE_IN_PROGRESS, or topics changed --> joins again
                                STABLE -- removed, or not polled for too long --> LOST --> OUT

`join` sends JoinGroup and SyncGroup in the background; its result is applied, and listeners are
called, only when the application polls (`rebalancing`). Heartbeats are sent in the background, too,
until the application has not polled for `max_poll_interval_ms`: then the member leaves, and others
read its partitions. Source: KIP-62, KIP-345 (static members), KIP-394, KIP-814.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable

from kdist.client.consumer.assignors import ASSIGNORS, NO_GENERATION, Assignor, Member
from kdist.client.consumer.context import ConsumerContext, may_pass
from kdist.client.consumer.subscriptions import (
    read_member,
    read_partitions,
    write_assignment,
    write_subscription,
)
from kdist.client.coordinators import Coordinator
from kdist.errors import ApiError, Error, ProtocolError
from kdist.model import TopicPartition
from kdist.protocol import leave_group
from kdist.protocol.heartbeat import HeartbeatRequest
from kdist.protocol.join_group import JoinGroupProtocol, JoinGroupRequest, JoinGroupResponse
from kdist.protocol.leave_group import LeaveGroupRequest, LeavingMember
from kdist.protocol.sync_group import SyncGroupAssignment, SyncGroupRequest

PROTOCOL_TYPE = "consumer"
_NO_MEMBER = ""
_JOIN_GRACE_MS = 5_000  # the coordinator may answer JoinGroup just after the rebalance timeout
_LEAVE_TIMEOUT_MS = 5_000
_VERSION_OF_MANY = 3  # the first LeaveGroup version that names several members

_AGAIN_AS_NEW = frozenset((Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION))

CountPartitions = Callable[[Iterable[str]], Awaitable[dict[str, int]]]


class Membership:
    """Owner: the loop, except that the polling thread writes `polled_at_s`.

    `rebalancing` keeps `owned` up to date.
    """

    def __init__(self, context: ConsumerContext, group_id: str, count: CountPartitions) -> None:
        settings = context.settings
        self.coordinator = Coordinator(context.cluster, context.group, group_id)
        self.assignors = [ASSIGNORS[name] for name in settings.partition_assignment_strategy]
        # As in Java's consumer: one eager assignor in the list makes the member eager, since other
        # members of its group may be.
        self.is_cooperative = all(each.is_cooperative for each in self.assignors)
        self.member_id = _NO_MEMBER
        self.generation = NO_GENERATION
        self.topics: frozenset[str] = frozenset()
        self.owned: tuple[TopicPartition, ...] = ()
        self.must_join = False
        self.is_lost = False  # the owned partitions are no longer ours
        self.polled_at_s = context.now_s()
        self.group_counts: dict[str, int] | None = None  # partition counts that we assigned from
        self._last_owned: tuple[TopicPartition, ...] = ()  # assigned by the last join
        self._context = context
        self._settings = settings
        self._group_id = group_id
        self._count = count
        self._beating: asyncio.Task[None] | None = None

    @property
    def is_member(self) -> bool:
        """Whether we are a member, as far as we know."""
        return self.generation != NO_GENERATION

    def is_settled_in(self, generation: int) -> bool:
        """Whether that is our generation, and we are not joining another."""
        return generation == self.generation and self._beating is not None

    def want_join(self) -> None:
        """Make the next poll join, or rejoin."""
        self.must_join = True
        self._context.wakeup.set()

    # Joining

    async def join(self) -> tuple[TopicPartition, ...]:
        """Join, retrying until it succeeds; returns the assigned partitions.

        `ApiError` if the error is not retriable.
        """
        self.stop_beating()
        for failures in itertools.count():
            self.must_join = False
            try:
                assigned = await self._join_once()
            except ApiError as error:
                if error.error in _AGAIN_AS_NEW:
                    self._forget(error.error)
                if not (may_pass(error) or error.error in _JOINED_AGAIN):
                    raise
                if error.error is not Error.MEMBER_ID_REQUIRED:
                    await self._context.back_off(failures)
            else:
                self._last_owned = assigned
                self._beating = self._context.loop.create_task(self._beat())
                return assigned
        raise AssertionError("it counts for ever")

    async def _join_once(self) -> tuple[TopicPartition, ...]:
        settings = self._settings
        request = JoinGroupRequest(
            group_id=self._group_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupProtocol(name=each.name, metadata=self._subscription(each))
                for each in self.assignors
            ],
        )
        timeout_ms = settings.max_poll_interval_ms + _JOIN_GRACE_MS
        answer = await self.coordinator.ask(request, self._context.joining, timeout_ms)
        if answer.error_code == Error.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        self.coordinator.check(answer.error_code)
        self.member_id = answer.member_id
        self.group_counts = None
        assignments = []
        if answer.leader == answer.member_id:
            assignments = await self._assign(answer)
        assigned = await self._sync(answer, assignments)
        self.generation = answer.generation_id
        return assigned

    def _subscription(self, assignor: Assignor) -> bytes:
        owned = self._last_owned if assignor.keeps_owned_in_user_data else self.owned
        member = Member(
            self.member_id,
            self.topics,
            self._settings.group_instance_id,
            owned,
            self.generation,
        )
        return write_subscription(assignor, member, self._settings.client_rack or None)

    async def _assign(self, answer: JoinGroupResponse) -> list[SyncGroupAssignment]:
        """As the group's leader, assign partitions to all members."""
        assignor = ASSIGNORS.get(answer.protocol_name or "")
        if assignor is None:
            raise ApiError(
                Error.INCONSISTENT_GROUP_PROTOCOL, f"there is no assignor {answer.protocol_name}"
            )
        try:
            members = [
                read_member(each.member_id, each.group_instance_id, each.metadata)
                for each in answer.members
            ]
        except ProtocolError as error:
            raise ApiError(Error.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error
        self.group_counts = await self._count({t for member in members for t in member.topics})
        if answer.skip_assignment:
            return []  # a static leader has come back: the assignment stays (KIP-814)
        assigned = assignor.assign(self.group_counts, members)
        return [
            SyncGroupAssignment(member_id=member, assignment=write_assignment(partitions))
            for member, partitions in assigned.items()
        ]

    async def _sync(
        self, joined: JoinGroupResponse, assignments: list[SyncGroupAssignment]
    ) -> tuple[TopicPartition, ...]:
        request = SyncGroupRequest(
            group_id=self._group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        timeout_ms = self._settings.max_poll_interval_ms + _JOIN_GRACE_MS
        answer = await self.coordinator.ask(request, self._context.joining, timeout_ms)
        self.coordinator.check(answer.error_code)
        try:
            return read_partitions(answer.assignment)
        except ProtocolError as error:
            raise ApiError(Error.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error

    def _forget(self, error: Error | None = None) -> None:
        """Forget the generation, and the member id too unless it is still valid.

        It is after ILLEGAL_GENERATION.
        """
        self.generation = NO_GENERATION
        if error is not Error.ILLEGAL_GENERATION:
            self.member_id = _NO_MEMBER

    # Heartbeats

    async def _beat(self) -> None:
        settings = self._settings
        beat_s = settings.heartbeat_interval_ms / 1000
        wait_s = beat_s
        while True:
            idle_s = settings.max_poll_interval_ms / 1000 - self.silent_s()
            await asyncio.sleep(max(0, min(wait_s, idle_s)))
            if self.silent_s() * 1000 >= settings.max_poll_interval_ms:
                await self._give_up()
                return
            try:
                await self._beat_once()
                wait_s = beat_s
            except ApiError as error:
                if not may_pass(error):
                    self._thrown_out(error)
                    return
                wait_s = min(beat_s, self._context.backoff_s())

    def silent_s(self) -> float:
        """How long ago the application last polled."""
        return self._context.now_s() - self.polled_at_s

    async def _beat_once(self) -> None:
        request = HeartbeatRequest(
            group_id=self._group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id,
        )
        answer = await self.coordinator.ask(request, timeout_ms=self._settings.session_timeout_ms)
        if answer.error_code == Error.REBALANCE_IN_PROGRESS:
            self.want_join()
        else:
            self.coordinator.check(answer.error_code)

    async def _give_up(self) -> None:
        """Leave, because the application has not polled for too long."""
        self._beating = None
        self.lose()  # first, so that a poll meanwhile returns no records that others read by then
        await self.leave("the application does not poll")

    def _thrown_out(self, error: ApiError) -> None:
        self._beating = None
        self._forget(error.error)
        self.lose()
        if error.error not in _AGAIN_AS_NEW:
            # Fenced by another member with our instance id, or no longer authorised.
            self._context.report(error)

    def lose(self) -> None:
        """Mark the owned partitions as lost; the next poll calls `on_lost`, and rejoins."""
        self.is_lost = True
        self.want_join()

    def fenced(self, error: Error) -> None:
        """A request other than a heartbeat was refused for our identity: treat it as that."""
        self.stop_beating()
        self._thrown_out(ApiError(error))

    def stop_beating(self) -> None:
        """Send no heartbeats until the next join."""
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None

    # Leaving

    async def leave(self, reason: str) -> None:
        """Leave the group; a static member sends nothing, so that it can come back (KIP-345).

        A coordinator that cannot be reached removes the member when its session times out.
        """
        self.stop_beating()
        member_id = self.member_id  # also while joining: the coordinator waits for such a member
        self._forget()
        if member_id == _NO_MEMBER or self._settings.group_instance_id is not None:
            return
        try:
            client = await self.coordinator.client()
            if client.version_of(leave_group.API) < _VERSION_OF_MANY:
                request = LeaveGroupRequest(group_id=self._group_id, member_id=member_id)
            else:
                leaving = LeavingMember(member_id=member_id, reason=reason)
                request = LeaveGroupRequest(group_id=self._group_id, members=[leaving])
            await self.coordinator.ask(request, timeout_ms=_LEAVE_TIMEOUT_MS)
        except ApiError:
            pass  # the session will time out


_JOINED_AGAIN = _AGAIN_AS_NEW | {Error.MEMBER_ID_REQUIRED, Error.REBALANCE_IN_PROGRESS}
