"""SyncGroup: the leader sends the assignment, and each member receives its part.

In COMPLETING the leader's assignment is appended to the log with the generation, and only then sent
to the members, so that an assignment in use survives the coordinator. In STABLE a sync is answered
at once, also a repeated one. Source: Apache Kafka's GroupCoordinator.handleSyncGroup; KIP-559.
"""

from __future__ import annotations

from functools import partial

from kdist.errors import Error
from kdist.groups.answers import sync_refused, synced
from kdist.groups.context import GroupsContext
from kdist.groups.group import Group, SyncReply
from kdist.groups.membership import generation_fault
from kdist.groups.rebalance import Rebalancer
from kdist.groups.states import COMPLETING, PREPARING, STABLE
from kdist.protocol.sync_group import SyncGroupRequest

# Refused members rejoin at once. Without a pause, a librdkafka group whose partition of
# `__consumer_offsets` was on a full disk went through 1,000 generations a second.
NOT_STORED_PAUSE_MS = 1_000


def sync(
    context: GroupsContext,
    rebalancer: Rebalancer,
    group: Group,
    request: SyncGroupRequest,
    reply: SyncReply,
) -> None:
    """Answer now, or when the assignment is in the log."""
    fault = _fault(group, request)
    if fault is not Error.NONE:
        context.answer(reply, sync_refused(fault))
        return
    member = group.members[request.member_id]
    group.unsynced.pop(member.member_id, None)
    if not group.unsynced:
        group.stop_sync_timer()
    if group.state is STABLE:
        context.answer(reply, synced(group, member))
        rebalancer.restart_session(group, member)
        return
    rebalancer.park_sync(group, member, reply)
    if group.leader_id == member.member_id and not group.is_assigning:
        _assign(context, rebalancer, group, request)


def _assign(
    context: GroupsContext, rebalancer: Rebalancer, group: Group, request: SyncGroupRequest
) -> None:
    """Store the leader's assignment; members that it leaves out get an empty one."""
    given = {each.member_id: each.assignment for each in request.assignments}
    assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
    generation = group.generation
    group.is_assigning = True

    def is_over() -> bool:
        """Whether a rebalance began in the meantime, and has answered all syncs."""
        return group.state is not COMPLETING or group.generation != generation

    def stored(error: Error) -> None:
        if is_over():
            return
        if error is not Error.NONE:
            context.call_later(NOT_STORED_PAUSE_MS, partial(start_over, error))
            return
        for member in group.members.values():
            member.assignment = assignments[member.member_id]
        group.become(STABLE, context.clock.now_ms())
        rebalancer.answer_syncs(group, partial(synced, group))
        context.metrics.finished_rebalances += 1

    def start_over(error: Error) -> None:
        """The assignment could not be stored: refuse the waiting syncs, and rebalance."""
        if not is_over():
            rebalancer.answer_syncs(group, lambda _member: sync_refused(error))
            rebalancer.prepare(group, f"its assignment was not stored: {error.name}")

    rebalancer.store(group, assignments, stored)


def _fault(group: Group, request: SyncGroupRequest) -> Error:
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
