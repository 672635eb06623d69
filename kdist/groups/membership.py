"""Heartbeat and LeaveGroup, and the check that a request comes from a member (KIP-345)."""

from __future__ import annotations

from kdist.errors import Error
from kdist.groups.group import Group
from kdist.groups.member import UNKNOWN_MEMBER_ID
from kdist.groups.rebalance import Rebalancer
from kdist.groups.states import PREPARING
from kdist.protocol.heartbeat import HeartbeatRequest
from kdist.protocol.leave_group import LeaveGroupRequest, LeavingMember


def member_fault(group: Group, member_id: str, instance_id: str | None) -> Error:
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
    """As `member_fault`, or ILLEGAL_GENERATION if the member missed a rebalance (pure)."""
    fault = member_fault(group, member_id, instance_id)
    if fault is Error.NONE and generation != group.generation:
        return Error.ILLEGAL_GENERATION
    return fault


def heartbeat(rebalancer: Rebalancer, group: Group, request: HeartbeatRequest) -> Error:
    """Note that the member is alive; REBALANCE_IN_PROGRESS asks it to join again."""
    fault = generation_fault(
        group, request.member_id, request.group_instance_id, request.generation_id
    )
    if fault is not Error.NONE:
        return fault
    rebalancer.restart_session(group, group.members[request.member_id])
    return Error.REBALANCE_IN_PROGRESS if group.state is PREPARING else Error.NONE


def leaving_members(request: LeaveGroupRequest, version: int) -> list[LeavingMember]:
    """The members that leave; before version 3 only the sender (pure)."""
    return request.members if version >= 3 else [LeavingMember(member_id=request.member_id)]


def leave(rebalancer: Rebalancer, group: Group, leaving: LeavingMember) -> Error:
    """Remove one member, named by its member id or, if static, by its instance id alone."""
    member_id, instance_id = leaving.member_id, leaving.group_instance_id
    if member_id == UNKNOWN_MEMBER_ID and instance_id is not None:
        member_id = group.static_ids.get(instance_id, UNKNOWN_MEMBER_ID)
    if member_id in group.pending:
        rebalancer.remove_pending(group, member_id)
        return Error.NONE
    fault = member_fault(group, member_id, instance_id)
    if fault is Error.NONE:
        why = f"left: {leaving.reason or 'it gave no reason'}"
        rebalancer.remove(group, group.members[member_id], why)
    return fault
