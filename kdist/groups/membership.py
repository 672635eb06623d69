"""What a member may ask: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

    the joiner                  what happens
    without a member id         MEMBER_ID_REQUIRED and an id to join again with (KIP-394); if the
                                client is too old to know, or static, it is added
    with an id given out        it is added
    static, instance id known   it takes over that member's place
    a member                    PREPARING: parked. COMPLETING: gets the generation again, as the
                                first response may have been lost; with changed protocols the group
                                rebalances. STABLE: likewise, and a leader's join is a rebalance too
    anyone else                 UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID

A static member that comes back keeps its place, under a new member id (KIP-345):

    PREPARING    it counts as joined
    COMPLETING   the leader may be assigning to the old id: the group rebalances
    STABLE       if the group's protocol stays the same, nothing changes for the others: once the
                 new id is in the log, the member gets the generation, and its sync gets the old
                 assignment. Otherwise the group rebalances

A client that still waits under the old id is fenced. A leader that comes back to a stable group
must not assign again: it is told so (KIP-814: skip_assignment), or, if its client is too old to
know, that the old id leads, so that it does not take itself for the leader.

Source: Apache Kafka's GroupCoordinator.handleJoinGroup, handleSyncGroup; KIP-62, KIP-345, KIP-389
(size limit), KIP-559.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

from kdist.errors import Error
from kdist.groups.context import GroupsContext
from kdist.groups.group import (
    COMPLETING,
    PREPARING,
    STABLE,
    UNKNOWN_MEMBER_ID,
    Group,
    JoinReply,
    Member,
    SyncReply,
)
from kdist.groups.rebalance import Rebalancer, join_refused, joined, sync_refused, synced
from kdist.protocol.heartbeat import HeartbeatRequest
from kdist.protocol.join_group import JoinGroupResponse
from kdist.protocol.leave_group import LeavingMember
from kdist.protocol.sync_group import SyncGroupRequest


def _member_fault(group: Group, member_id: str, instance_id: str | None) -> Error:
    """Why a request is not from a member (pure); NONE if it is.

    Once a new member id has taken over an instance id, the old member id is fenced.
    """
    if instance_id is not None:
        current_id = group.static_ids.get(instance_id)
        if current_id is not None and current_id != member_id:
            return Error.FENCED_INSTANCE_ID
        if current_id is None:
            return Error.UNKNOWN_MEMBER_ID
    return Error.NONE if member_id in group.members else Error.UNKNOWN_MEMBER_ID


def generation_fault(
    group: Group, member_id: str, instance_id: str | None, generation: int
) -> Error:
    """Why a request is not from a member in the current generation (pure); NONE if it is."""
    fault = _member_fault(group, member_id, instance_id)
    if fault is Error.NONE and generation != group.generation:
        return Error.ILLEGAL_GENERATION
    return fault


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Join:
    """A JoinGroup, of whatever version."""

    joiner: Member  # under the id that the client has
    protocol_type: str
    may_need_id: bool  # the client joins again with the id that it is given
    may_skip_assignment: bool  # the client knows `skip_assignment`
    reply: JoinReply

    @property
    def member_id(self) -> str:
        return self.joiner.member_id


class _Before(NamedTuple):
    """What a takeover changes, to be restored if its append fails."""

    member: Member
    leader_id: str | None


class Membership:
    """Carries out what members ask. Has no state of its own."""

    def __init__(self, context: GroupsContext, rebalancer: Rebalancer) -> None:
        self._context = context
        self._rebalancer = rebalancer

    def join(self, group: Group, join: Join) -> None:
        """Answer now or later, and rebalance where the group has to."""
        if not self._has_room(group, join.member_id):
            self._turn_away(group, join)
        elif not group.supports(join.protocol_type, join.joiner.protocols):
            self._refuse(join, Error.INCONSISTENT_GROUP_PROTOCOL)
        elif join.member_id == UNKNOWN_MEMBER_ID:
            self._join_without_id(group, join)
        elif join.member_id in group.pending and not join.joiner.is_static:
            self._add(group, join, join.member_id)
        else:
            self._join_again(group, join)
        self._rebalancer.maybe_complete(group)

    def sync(self, group: Group, request: SyncGroupRequest, reply: SyncReply) -> None:
        """Answer with the member's part of the assignment: now, or when that is in the log."""
        fault = _sync_fault(group, request)
        if fault is not Error.NONE:
            self._context.answer(reply, sync_refused(fault))
            return
        member = group.members[request.member_id]
        group.unsynced.pop(member.member_id, None)
        if not group.unsynced:
            group.stop_sync_timer()
        if group.state is STABLE:  # perhaps a repeated one
            self._context.answer(reply, synced(group, member))
            self._rebalancer.restart_session(group, member)
            return
        self._rebalancer.park_sync(group, member, reply)
        if group.leader_id == member.member_id and not group.is_assigning:
            given = {each.member_id: each.assignment for each in request.assignments}
            self._rebalancer.assign(group, given)

    def heartbeat(self, group: Group, request: HeartbeatRequest) -> Error:
        """Note that the member is alive; REBALANCE_IN_PROGRESS asks it to join again."""
        fault = generation_fault(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
        if fault is not Error.NONE:
            return fault
        self._rebalancer.restart_session(group, group.members[request.member_id])
        return Error.REBALANCE_IN_PROGRESS if group.state is PREPARING else Error.NONE

    def leave(self, group: Group, leaving: LeavingMember) -> Error:
        """Remove one member, named by its member id or, if static, by its instance id alone."""
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        if member_id == UNKNOWN_MEMBER_ID and instance_id is not None:
            member_id = group.static_ids.get(instance_id, UNKNOWN_MEMBER_ID)
        if member_id in group.pending:
            self._rebalancer.remove_pending(group, member_id)
            return Error.NONE
        fault = _member_fault(group, member_id, instance_id)
        if fault is Error.NONE:
            why = f"left: {leaving.reason or 'it gave no reason'}"
            self._rebalancer.remove(group, group.members[member_id], why)
        return fault

    # Joining

    def _has_room(self, group: Group, member_id: str) -> bool:
        """Whether the group is below `group.max.size`, or the joiner is counted already.

        During a rebalance only those that have joined count: the last to join are refused.
        """
        size_max = self._context.settings.max_size
        if group.state is PREPARING:
            return member_id in group.joining or len(group.joining) < size_max
        return member_id in group.members or len(group.members) < size_max

    def _turn_away(self, group: Group, join: Join) -> None:
        if join.member_id in group.members:  # of a generation from before the limit was lowered
            group.remove(join.member_id)
        group.forget_pending(join.member_id)
        self._context.answer(join.reply, join_refused(Error.GROUP_MAX_SIZE_REACHED))

    def _refuse(self, join: Join, error: Error) -> None:
        self._context.answer(join.reply, join_refused(error, join.member_id))

    def _join_without_id(self, group: Group, join: Join) -> None:
        instance_id = join.joiner.instance_id
        member_id = self._context.new_member_id(instance_id or join.joiner.client_id)
        known_id = group.static_ids.get(instance_id) if instance_id is not None else None
        if known_id is not None:
            self._take_over(group, join, group.members[known_id], member_id)
        elif instance_id is None and join.may_need_id:
            self._rebalancer.expect(group, member_id, join.joiner.session_timeout_ms)
            self._context.answer(join.reply, join_refused(Error.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(group, join, member_id)

    def _add(self, group: Group, join: Join, member_id: str) -> None:
        member = dataclasses.replace(join.joiner, member_id=member_id)
        self._rebalancer.add(group, member, join.protocol_type, join.reply)

    def _join_again(self, group: Group, join: Join) -> None:
        fault = _member_fault(group, join.member_id, join.joiner.instance_id)
        if fault is not Error.NONE:
            self._refuse(join, fault)
            return
        member = group.members[join.member_id]
        is_same = member.protocols == join.joiner.protocols
        is_leader = group.state is STABLE and group.leader_id == member.member_id
        if group.state is not PREPARING and is_same and not is_leader:
            self._context.answer(join.reply, joined(group, member))
        else:
            self._take_part(group, member, join)

    def _take_part(self, group: Group, member: Member, join: Join) -> None:
        """Park the member's join, and begin a rebalance unless one is waiting for joins already."""
        _update(group, member, join.joiner)
        self._rebalancer.park_join(group, member, join.reply)
        self._rebalancer.maybe_prepare(group, f"member {member.member_id} joins again")

    # A static member comes back

    def _take_over(self, group: Group, join: Join, member: Member, new_id: str) -> None:
        """The joiner becomes `member`, under the id `new_id`."""
        before = self._replace(group, join, member, new_id)
        if group.state is STABLE and group.choose_protocol() == group.protocol_name:
            assignments = {each.member_id: each.assignment for each in group.members.values()}
            done = partial(self._stored, group, join, member, before)
            self._rebalancer.store(group, assignments, done)
        elif group.state in (STABLE, COMPLETING):
            self._rebalancer.prepare(group, f"static member {member.instance_id} came back")

    def _replace(self, group: Group, join: Join, member: Member, new_id: str) -> _Before:
        before = _Before(dataclasses.replace(member), group.leader_id)
        fenced = Error.FENCED_INSTANCE_ID
        self._rebalancer.answer_join(
            group, member.member_id, join_refused(fenced, member.member_id)
        )
        self._rebalancer.answer_sync(group, member.member_id, sync_refused(fenced))
        group.rename(member, new_id)
        _update(group, member, join.joiner)
        self._rebalancer.park_join(group, member, join.reply)
        self._rebalancer.restart_session(group, member)
        return before

    def _stored(
        self, group: Group, join: Join, member: Member, before: _Before, error: Error
    ) -> None:
        """The append of the new id has ended; the group may have changed in the meantime."""
        if group.joining.get(member.member_id) is not join.reply or group.state is not STABLE:
            return  # answered elsewhere: by a rebalance, another takeover or the group's end
        if error is not Error.NONE:
            self._take_back(group, member, before, error)
        else:
            response = _rejoined(group, member, before, join)
            self._rebalancer.answer_join(group, member.member_id, response)
        self._rebalancer.restart_session(group, member)

    def _take_back(self, group: Group, member: Member, before: _Before, error: Error) -> None:
        self._rebalancer.answer_join(group, member.member_id, join_refused(error))
        group.rename(member, before.member.member_id)
        _update(group, member, before.member)


def _update(group: Group, member: Member, like: Member) -> None:
    """Give the member the protocols and timeouts of another, which asks for the same place."""
    group.set_protocols(member, like.protocols)
    member.session_timeout_ms = like.session_timeout_ms
    member.rebalance_timeout_ms = like.rebalance_timeout_ms


def _rejoined(group: Group, member: Member, before: _Before, join: Join) -> JoinGroupResponse:
    response = joined(group, member)
    is_leader = group.leader_id == member.member_id
    if join.may_skip_assignment:
        response.skip_assignment = is_leader
    elif is_leader:
        response.leader, response.members = before.leader_id or "", []
    return response


def _sync_fault(group: Group, request: SyncGroupRequest) -> Error:
    fault = generation_fault(
        group, request.member_id, request.group_instance_id, request.generation_id
    )
    if fault is not Error.NONE:
        return fault
    if request.protocol_type not in (None, group.protocol_type):
        return Error.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol_name not in (None, group.protocol_name):
        return Error.INCONSISTENT_GROUP_PROTOCOL
    return Error.REBALANCE_IN_PROGRESS if group.state is PREPARING else Error.NONE
