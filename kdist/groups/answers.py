"""The responses to joins and syncs (pure)."""

from __future__ import annotations

from kdist.errors import Error
from kdist.groups.group import Group
from kdist.groups.member import UNKNOWN_MEMBER_ID, Member
from kdist.protocol.join_group import JoinGroupResponse
from kdist.protocol.sync_group import SyncGroupResponse


def join_refused(error: Error, member_id: str = UNKNOWN_MEMBER_ID) -> JoinGroupResponse:
    """An error; with an empty member id the client starts over as a new member."""
    return JoinGroupResponse(
        error_code=error, protocol_name=None, leader="", member_id=member_id, members=[]
    )


def joined(group: Group, member: Member) -> JoinGroupResponse:
    """The group's generation, and its members if this one is the leader."""
    return JoinGroupResponse(
        error_code=Error.NONE,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        member_id=member.member_id,
        members=group.described_members() if member.member_id == group.leader_id else [],
    )


def sync_refused(error: Error) -> SyncGroupResponse:
    """An error, and no assignment."""
    return SyncGroupResponse(error_code=error, assignment=b"")


def synced(group: Group, member: Member) -> SyncGroupResponse:
    """The member's assignment in the group's generation."""
    return SyncGroupResponse(
        error_code=Error.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )
