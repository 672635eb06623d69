"""JoinGroup: who may become a member, or take part in the next generation.

    the joiner                  what happens
    without a member id         from version 4 on: MEMBER_ID_REQUIRED and an id to join again with
                                (KIP-394); before that, and if static: it is added
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
must not assign again. From version 9 on it is told so (KIP-814: skip_assignment); older versions
are told that the old id leads, so that the client does not take itself for the leader.

Source: Apache Kafka's GroupCoordinator.handleJoinGroup; KIP-62, KIP-345, KIP-389 (size limit).
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

from kdist.errors import Error
from kdist.groups.answers import join_refused, joined, sync_refused
from kdist.groups.context import GroupsContext
from kdist.groups.group import Group, JoinReply
from kdist.groups.member import UNKNOWN_MEMBER_ID, Caller, Member, Protocols
from kdist.groups.membership import member_fault
from kdist.groups.rebalance import Rebalancer
from kdist.groups.states import COMPLETING, PREPARING, STABLE
from kdist.protocol.join_group import JoinGroupRequest, JoinGroupResponse

REQUIRES_MEMBER_ID_SINCE = 4
SKIPS_ASSIGNMENT_SINCE = 9


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Join:
    """`protocols` are the request's, in the form that `Member` keeps."""

    request: JoinGroupRequest
    caller: Caller
    protocols: Protocols
    reply: JoinReply

    @property
    def rebalance_timeout_ms(self) -> int:
        """Version 0 has no rebalance timeout: the session timeout is used."""
        asked_ms = self.request.rebalance_timeout_ms
        return self.request.session_timeout_ms if asked_ms < 0 else asked_ms

    def new_member(self, member_id: str) -> Member:
        return Member(
            member_id=member_id,
            instance_id=self.request.group_instance_id,
            client_id=self.caller.client_id,
            client_host=self.caller.client_host,
            protocols=self.protocols,
            session_timeout_ms=self.request.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
        )

    def update(self, group: Group, member: Member) -> None:
        """Update an existing member's protocols and timeouts from this join."""
        group.set_protocols(member, self.protocols)
        member.session_timeout_ms = self.request.session_timeout_ms
        member.rebalance_timeout_ms = self.rebalance_timeout_ms


def join_of(request: JoinGroupRequest, caller: Caller, reply: JoinReply) -> Join:
    """Decode the request. If it lists an assignor twice, the first counts."""
    protocols: dict[str, bytes] = {}
    for each in request.protocols:
        protocols.setdefault(each.name, each.metadata)
    return Join(request, caller, tuple(protocols.items()), reply)


class _Before(NamedTuple):
    """What a takeover changes, to be restored if its append fails."""

    member_id: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    leader_id: str | None


class Joiner:
    """Handles joins. Has no state of its own."""

    def __init__(self, context: GroupsContext, rebalancer: Rebalancer) -> None:
        self._context = context
        self._rebalancer = rebalancer

    def join(self, group: Group, join: Join) -> None:
        """Answer now or later, and rebalance where the group has to."""
        request = join.request
        if not self._has_room(group, request.member_id):
            self._turn_away(group, join)
        elif not group.supports(request.protocol_type, join.protocols):
            self._refuse(join, Error.INCONSISTENT_GROUP_PROTOCOL)
        elif request.member_id == UNKNOWN_MEMBER_ID:
            self._join_without_id(group, join)
        elif request.member_id in group.pending and request.group_instance_id is None:
            self._add(group, join, request.member_id)
        else:
            self._join_again(group, join)
        self._rebalancer.maybe_complete(group)

    def _has_room(self, group: Group, member_id: str) -> bool:
        """Whether the group is below `group.max.size`, or the joiner is counted already.

        During a rebalance only those that have joined count: the last to join are refused.
        """
        size_max = self._context.settings.max_size
        if group.state is PREPARING:
            return member_id in group.joining or len(group.joining) < size_max
        return member_id in group.members or len(group.members) < size_max

    def _turn_away(self, group: Group, join: Join) -> None:
        member_id = join.request.member_id
        if member_id in group.members:  # of a generation from before the limit was lowered
            group.remove(member_id)
        group.forget_pending(member_id)
        self._context.answer(join.reply, join_refused(Error.GROUP_MAX_SIZE_REACHED))

    def _refuse(self, join: Join, error: Error) -> None:
        self._context.answer(join.reply, join_refused(error, join.request.member_id))

    def _join_without_id(self, group: Group, join: Join) -> None:
        instance_id = join.request.group_instance_id
        member_id = self._context.new_member_id(instance_id or join.caller.client_id)
        known_id = group.static_ids.get(instance_id) if instance_id is not None else None
        if known_id is not None:
            self._take_over(group, join, group.members[known_id], member_id)
        elif instance_id is None and join.caller.version >= REQUIRES_MEMBER_ID_SINCE:
            timeout_ms = join.request.session_timeout_ms
            self._rebalancer.expect(group, member_id, timeout_ms)
            self._context.answer(join.reply, join_refused(Error.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(group, join, member_id)

    def _add(self, group: Group, join: Join, member_id: str) -> None:
        member = join.new_member(member_id)
        self._rebalancer.add(group, member, join.request.protocol_type, join.reply)

    def _join_again(self, group: Group, join: Join) -> None:
        request = join.request
        fault = member_fault(group, request.member_id, request.group_instance_id)
        if fault is not Error.NONE:
            self._refuse(join, fault)
            return
        member = group.members[request.member_id]
        is_same = member.protocols == join.protocols
        is_leader = group.state is STABLE and group.leader_id == member.member_id
        if group.state is not PREPARING and is_same and not is_leader:
            self._context.answer(join.reply, joined(group, member))
        else:
            self._take_part(group, member, join)

    def _take_part(self, group: Group, member: Member, join: Join) -> None:
        """Park the member's join, and begin a rebalance unless one is waiting for joins already."""
        join.update(group, member)
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
        before = _Before(
            member.member_id,
            member.protocols,
            member.session_timeout_ms,
            member.rebalance_timeout_ms,
            group.leader_id,
        )
        fenced = Error.FENCED_INSTANCE_ID
        self._rebalancer.answer_join(
            group, member.member_id, join_refused(fenced, member.member_id)
        )
        self._rebalancer.answer_sync(group, member.member_id, sync_refused(fenced))
        group.rename(member, new_id)
        join.update(group, member)
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
            self._rebalancer.answer_join(
                group, member.member_id, _rejoined(group, member, before, join.caller.version)
            )
        self._rebalancer.restart_session(group, member)

    def _take_back(self, group: Group, member: Member, before: _Before, error: Error) -> None:
        self._rebalancer.answer_join(group, member.member_id, join_refused(error))
        group.rename(member, before.member_id)
        group.set_protocols(member, before.protocols)
        member.session_timeout_ms = before.session_timeout_ms
        member.rebalance_timeout_ms = before.rebalance_timeout_ms


def _rejoined(group: Group, member: Member, before: _Before, version: int) -> JoinGroupResponse:
    response = joined(group, member)
    is_leader = group.leader_id == member.member_id
    if version >= SKIPS_ASSIGNMENT_SINCE:
        response.skip_assignment = is_leader
    elif is_leader:
        response.leader, response.members = before.leader_id or "", []
    return response
