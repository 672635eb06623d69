"""A static member that comes back: it keeps its place, under a new member id (KIP-345).

    PREPARING    it counts as joined
    COMPLETING   the leader may be assigning to the old id: the group rebalances
    STABLE       if the group's protocol stays the same, nothing changes for the others: once the
                 new id is in the log, the member gets the generation, and its sync gets the old
                 assignment. Otherwise the group rebalances

A client that still waits under the old id is fenced. A leader that comes back to a stable group
must not assign again. From version 9 on it is told so (KIP-814: skip_assignment); older versions
are told that the old id leads, so that the client does not take itself for the leader.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from kdist.errors import Error
from kdist.groups.answers import join_refused, joined, sync_refused
from kdist.groups.context import GroupsContext
from kdist.groups.group import Group
from kdist.groups.joining import Join
from kdist.groups.member import Member, Protocols
from kdist.groups.rebalance import Rebalancer
from kdist.groups.states import COMPLETING, STABLE
from kdist.protocol.join_group import JoinGroupResponse

SKIPS_ASSIGNMENT_SINCE = 9


class _Before(NamedTuple):
    """What a takeover changes, to be restored if its append fails."""

    member_id: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    leader_id: str | None


class StaticJoiner:
    """Has no state of its own."""

    def __init__(self, context: GroupsContext, rebalancer: Rebalancer) -> None:
        self._context = context
        self._rebalancer = rebalancer

    def take_over(self, group: Group, join: Join, member: Member, new_id: str) -> None:
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
        self._rebalancer.sessions.restart(group, member)
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
        self._rebalancer.sessions.restart(group, member)

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
