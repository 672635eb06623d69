"""JoinGroup (key 11): become a member of a group's next generation.

    version  changed
    0        one timeout for session and rebalance
    1        rebalance timeout (KIP-62)
    2        response: throttle time (KIP-124)
    3        throttling happens after the response is sent (KIP-219)
    4        a new member gets MEMBER_ID_REQUIRED with its id, and joins again with it (KIP-394)
    5        group instance id of static members (KIP-345)
    6        flexible (KIP-482)
    7        response: protocol type; the protocol name may be None (KIP-559)
    8        the reason for joining (KIP-800)
    9        response: skip_assignment, for a static leader that returns (KIP-814)

The response is sent when every member has joined, or after the rebalance timeout. Only the leader's
response lists the members.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, bytes_, int16, int32, message, nullable_string, string, struct


@struct
class JoinGroupProtocol:
    """An assignor the member can use; `metadata` is its subscription (consumer_protocol.py)."""

    name: string
    metadata: bytes_


@message(flexible=6)
class JoinGroupRequest:
    """`rebalance_timeout_ms` -1, as in version 0, means the session timeout."""

    group_id: string
    session_timeout_ms: int32
    rebalance_timeout_ms: int32 = at(since=1, default=-1, ignorable=True)
    member_id: string
    group_instance_id: nullable_string = at(since=5, default=None)
    protocol_type: string
    protocols: list[JoinGroupProtocol]
    reason: nullable_string = at(since=8, default=None, ignorable=True)


@struct
class JoinGroupMember:
    """A member and its metadata for the chosen protocol."""

    member_id: string
    group_instance_id: nullable_string = at(since=5, default=None, ignorable=True)
    metadata: bytes_


@message(flexible=6)
class JoinGroupResponse:
    """`protocol_name` is "" where there is none, and None from version 7 on."""

    throttle_time_ms: int32 = at(since=2, default=0, ignorable=True)
    error_code: int16
    generation_id: int32 = -1
    protocol_type: nullable_string = at(since=7, default=None, ignorable=True)
    protocol_name: nullable_string = at(nullable_since=7)
    leader: string
    skip_assignment: bool = at(since=9, default=False)
    member_id: string
    members: list[JoinGroupMember]


API = Api(11, JoinGroupRequest, JoinGroupResponse, newest=9)
