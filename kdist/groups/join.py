"""JoinGroup: who may become a member, or take part in the next generation.

    the joiner                  what happens
    without a member id         from version 4 on: MEMBER_ID_REQUIRED and an id to join again with
                                (KIP-394); before that, and if static: it is added
    with an id given out        it is added
    static, instance id known   it takes over that member's place (static_join.py)
    a member                    PREPARING: parked. COMPLETING: gets the generation again, as the
                                first response may have been lost; with changed protocols the group
                                rebalances. STABLE: likewise, and a leader's join is a rebalance too
    anyone else                 UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID

Source: Apache Kafka's GroupCoordinator.handleJoinGroup; KIP-62, KIP-345, KIP-389 (size limit).
"""

from __future__ import annotations

from kdist.errors import Error
from kdist.groups.answers import join_refused, joined
from kdist.groups.context import GroupsContext
from kdist.groups.group import Group
from kdist.groups.joining import Join
from kdist.groups.member import UNKNOWN_MEMBER_ID, Member
from kdist.groups.membership import member_fault
from kdist.groups.rebalance import Rebalancer
from kdist.groups.states import PREPARING, STABLE
from kdist.groups.static_join import StaticJoiner

REQUIRES_MEMBER_ID_SINCE = 4


class Joiner:
    """Handles joins. Has no state of its own."""

    def __init__(self, context: GroupsContext, rebalancer: Rebalancer) -> None:
        self._context = context
        self._rebalancer = rebalancer
        self._static = StaticJoiner(context, rebalancer)

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
            self._static.take_over(group, join, group.members[known_id], member_id)
        elif instance_id is None and join.caller.version >= REQUIRES_MEMBER_ID_SINCE:
            timeout_ms = join.request.session_timeout_ms
            self._rebalancer.sessions.expect(group, member_id, timeout_ms)
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
