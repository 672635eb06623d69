"""SyncGroup (key 14): the leader sends all assignments, and each member receives its own.

version  changed
1        response: throttle time (KIP-124)
2        throttling happens after the response is sent (KIP-219)
3        group instance id of static members (KIP-345)
4        flexible (KIP-482)
5        protocol type and name, both ways, checked against the group's (KIP-559)
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, bytes_, int16, int32, message, nullable_string, string, struct


@struct
class SyncGroupAssignment:
    """What the leader assigns to one member (consumer_protocol.py)."""

    member_id: string
    assignment: bytes_


@message(flexible=4)
class SyncGroupRequest:
    """Only the leader has `assignments`."""

    group_id: string
    generation_id: int32
    member_id: string
    group_instance_id: nullable_string = at(since=3, default=None)
    protocol_type: nullable_string = at(since=5, default=None, ignorable=True)
    protocol_name: nullable_string = at(since=5, default=None, ignorable=True)
    assignments: list[SyncGroupAssignment]


@message(flexible=4)
class SyncGroupResponse:
    """This member's assignment; empty if there is an error."""

    throttle_time_ms: int32 = at(since=1, default=0, ignorable=True)
    error_code: int16
    protocol_type: nullable_string = at(since=5, default=None, ignorable=True)
    protocol_name: nullable_string = at(since=5, default=None, ignorable=True)
    assignment: bytes_


API = Api(14, SyncGroupRequest, SyncGroupResponse, newest=5)
