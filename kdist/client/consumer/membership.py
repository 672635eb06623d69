"""A member of a group as the coordinator knows it: joins, heartbeats, removal, leaving.

    OUT -- join --> JOINING --> STABLE -- REBALANCE_IN_PROGRESS, or topics changed --> joins again
                                STABLE -- thrown out, or not polled for too long --> LOST --> OUT

`join` is one round of JoinGroup and SyncGroup, run in the background; what it brings is applied,
and listeners are called, only when the application polls (`rebalancing`). Heartbeats go on beside
the application, and stop when it has not polled for `max_poll_interval_ms`: then its partitions are
others' to read. Source: KIP-62, KIP-345 (static members), KIP-394, KIP-814.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from kdist.client.consumer.assignors import ASSIGNORS, NO_GENERATION, Assignor, Member
from kdist.client.consumer.coordinator import Coordinator
from kdist.client.consumer.subscriptions import (
    read_member,
    read_partitions,
    write_assignment,
    write_subscription,
)
from kdist.client.consumer.world import World, may_pass
from kdist.errors import ApiError, Error, ProtocolError
from kdist.model import TopicPartition
from kdist.protocol import leave_group
from kdist.protocol.heartbeat import HeartbeatRequest
from kdist.protocol.join_group import (
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
)
from kdist.protocol.leave_group import LeaveGroupRequest, LeavingMember
from kdist.protocol.sync_group import SyncGroupAssignment, SyncGroupRequest

PROTOCOL_TYPE = "consumer"
_NO_MEMBER = ""
_JOIN_GRACE_MS = 5_000  # the coordinator answers a JoinGroup a little after the rebalance timeout
_LEAVE_TIMEOUT_MS = 5_000
_VERSION_OF_MANY = 3  # LeaveGroup: from then on several members at once

_AGAIN_AS_NEW = frozenset((Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION))

CountPartitions = Callable[[Iterable[str]], Awaitable[dict[str, int]]]


class Membership:
    """Owner: the loop; `polled_at_s` is written by who polls. `owned` by `rebalancing`."""

    def __init__(self, world: World, group_id: str, count: CountPartitions) -> None:
        settings = world.settings
        self.coordinator = Coordinator(world, group_id)
        self.assignors = [ASSIGNORS[name] for name in settings.partition_assignment_strategy]
        # As Java's: with one eager assignor it joins as eager members do, who may be in its group.
        self.is_cooperative = all(each.is_cooperative for each in self.assignors)
        self.member_id = _NO_MEMBER
        self.generation = NO_GENERATION
        self.topics: frozenset[str] = frozenset()
        self.owned: tuple[TopicPartition, ...] = ()
        self.must_join = False
        self.is_lost = False  # what is owned is no longer ours
        self.polled_at_s = world.now_s()
        self.group_counts: dict[str, int] | None = None  # of the leader's last assignment
        self._last_owned: tuple[TopicPartition, ...] = ()  # in this generation, given back or not
        self._world = world
        self._settings = settings
        self._group_id = group_id
        self._count = count
        self._beating: asyncio.Task[None] | None = None

    @property
    def is_member(self) -> bool:
        """Whether the coordinator knows us, as far as we know."""
        return self.generation != NO_GENERATION

    def is_settled_in(self, generation: int) -> bool:
        """Whether that is our generation, and we are not on the way to another."""
        return generation == self.generation and self._beating is not None

    def want_join(self) -> None:
        """Have the next poll join, again or for the first time."""
        self.must_join = True
        self._world.news.set()

    # Joining

    async def join(self) -> tuple[TopicPartition, ...]:
        """Join until it succeeds: the partitions assigned. `ApiError` for what is for good."""
        self.stop_beating()
        while True:
            self.must_join = False
            try:
                assigned = await self._join_once()
            except ApiError as error:
                if error.error in _AGAIN_AS_NEW:
                    self._forget(error.error)
                if not (may_pass(error) or error.error in _JOINED_AGAIN):
                    raise
                if error.error is not Error.MEMBER_ID_REQUIRED:
                    await self._world.back_off()
            else:
                self._last_owned = assigned
                self._beating = self._world.loop.create_task(self._beat())
                return assigned

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
        answer = await self.coordinator.ask(request, self._world.joining, timeout_ms)
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
        """The leader's work: everyone's partitions."""
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
            return []  # a static leader came back: the group keeps what it has (KIP-814)
        given = assignor.assign(self.group_counts, members)
        return [
            SyncGroupAssignment(member_id=member, assignment=write_assignment(partitions))
            for member, partitions in given.items()
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
        answer = await self.coordinator.ask(request, self._world.joining, timeout_ms)
        self.coordinator.check(answer.error_code)
        try:
            return read_partitions(answer.assignment)
        except ProtocolError as error:
            raise ApiError(Error.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error

    def _forget(self, error: Error | None = None) -> None:
        """The coordinator does not know us any more; after ILLEGAL_GENERATION still by name."""
        self.generation = NO_GENERATION
        if error is not Error.ILLEGAL_GENERATION:
            self.member_id = _NO_MEMBER

    # Beating

    async def _beat(self) -> None:
        settings = self._settings
        beat_s = settings.heartbeat_interval_ms / 1000
        wait_s = beat_s
        while True:
            idle_s = settings.max_poll_interval_ms / 1000 - self._silent_s()
            await asyncio.sleep(max(0, min(wait_s, idle_s)))
            if self._silent_s() * 1000 >= settings.max_poll_interval_ms:
                await self._give_up()
                return
            try:
                await self._beat_once()
                wait_s = beat_s
            except ApiError as error:
                if not may_pass(error):
                    self._thrown_out(error)
                    return
                wait_s = min(beat_s, self._world.backoff_s())

    def _silent_s(self) -> float:
        return self._world.now_s() - self.polled_at_s

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
        """The application has not polled for too long: let others read."""
        self._beating = None
        self.lose()  # first: a poll that comes meanwhile gives nothing that is others' by then
        await self.leave("the application does not poll")

    def _thrown_out(self, error: ApiError) -> None:
        self._beating = None
        self._forget(error.error)
        self.lose()
        if error.error not in _AGAIN_AS_NEW:
            # Fenced by another with our instance id, or no longer allowed.
            self._world.report(error)

    def lose(self) -> None:
        """What is owned is others' by now; the next poll will hear of it, and join again."""
        self.is_lost = True
        self.want_join()

    def fenced(self, error: Error) -> None:
        """Another request was refused for who we are: the same as a heartbeat's refusal."""
        self.stop_beating()
        self._thrown_out(ApiError(error))

    def stop_beating(self) -> None:
        """No more heartbeats until the next join."""
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None

    # Leaving

    async def leave(self, reason: str) -> None:
        """Tell the coordinator; a static member does not, so that it can come back (KIP-345).

        One that cannot be told finds out when the session times out.
        """
        self.stop_beating()
        member_id = self.member_id  # also of one that only wants to join, and is waited for
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
