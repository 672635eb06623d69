"""The responses to joins and syncs, and which error answers a failed append (pure).

Of an append to `__consumer_offsets` that fails, clients handle only a few errors. Each is mapped to
one that makes them do the right thing: look up the coordinator again, rejoin, or give up. Source:
Apache Kafka's group coordinator.
"""

from __future__ import annotations

from kdist.errors import Error
from kdist.groups.group import Group
from kdist.groups.member import UNKNOWN_MEMBER_ID, Member
from kdist.protocol.join_group import JoinGroupResponse
from kdist.protocol.sync_group import SyncGroupResponse

_EITHER = {
    Error.UNKNOWN_TOPIC_OR_PARTITION: Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_ENOUGH_REPLICAS: Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_LEADER_OR_FOLLOWER: Error.NOT_COORDINATOR,
    Error.KAFKA_STORAGE_ERROR: Error.NOT_COORDINATOR,
}
# An error that is not listed is passed on unchanged.
GENERATION_ERRORS = _EITHER | {
    Error.REQUEST_TIMED_OUT: Error.REBALANCE_IN_PROGRESS,
    Error.MESSAGE_TOO_LARGE: Error.UNKNOWN_SERVER_ERROR,
    Error.RECORD_LIST_TOO_LARGE: Error.UNKNOWN_SERVER_ERROR,
    Error.INVALID_FETCH_SIZE: Error.UNKNOWN_SERVER_ERROR,
}
COMMIT_ERRORS = _EITHER | {
    Error.MESSAGE_TOO_LARGE: Error.INVALID_COMMIT_OFFSET_SIZE,
    Error.RECORD_LIST_TOO_LARGE: Error.INVALID_COMMIT_OFFSET_SIZE,
    Error.INVALID_FETCH_SIZE: Error.INVALID_COMMIT_OFFSET_SIZE,
}


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
