"""DescribeGroups (key 15): the state and members of groups, for operators.

    version  changed
    1        response: throttle time (KIP-124)
    2        throttling happens after the response is sent (KIP-219)
    3        authorized operations (KIP-430)
    4        response: group instance id of static members (KIP-345)
    5        flexible (KIP-482)

An unknown group is in state "Dead", without an error.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.metadata import OMITTED
from kdist.protocol.schema import at, bytes_, int16, int32, message, nullable_string, string, struct


@message(flexible=5)
class DescribeGroupsRequest:
    groups: list[string]
    include_authorized_operations: bool = at(since=3, default=False)


@struct
class DescribedMember:
    """Metadata and assignment are there while the group is in state "Stable"."""

    member_id: string
    group_instance_id: nullable_string = at(since=4, default=None, ignorable=True)
    client_id: string
    client_host: string
    member_metadata: bytes_
    member_assignment: bytes_


@struct
class DescribedGroup:
    """`protocol_data` is the name of the chosen assignor."""

    error_code: int16
    group_id: string
    group_state: string
    protocol_type: string
    protocol_data: string
    members: list[DescribedMember]
    authorized_operations: int32 = at(since=3, default=OMITTED)


@message(flexible=5)
class DescribeGroupsResponse:
    throttle_time_ms: int32 = at(since=1, default=0, ignorable=True)
    groups: list[DescribedGroup]


API = Api(15, DescribeGroupsRequest, DescribeGroupsResponse, newest=5)
