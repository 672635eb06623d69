"""LeaveGroup (key 13): a member leaves, and its partitions are assigned to others.

version  changed
1        response: throttle time (KIP-124)
2        throttling happens after the response is sent (KIP-219)
3        many members at once, static ones among them: `members` for `member_id` (KIP-345)
4        flexible (KIP-482)
5        the reason for leaving (KIP-800)
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int16, int32, message, nullable_string, string, struct


@struct
class LeavingMember:
    """A member by id, or a static one by instance id with the member id empty."""

    member_id: string
    group_instance_id: nullable_string = None
    reason: nullable_string = at(since=5, default=None, ignorable=True)


@message(flexible=4)
class LeaveGroupRequest:
    """Up to version 2 `member_id`, from 3 on `members`."""

    group_id: string
    member_id: string = at(until=2, default="")
    members: list[LeavingMember] = at(since=3, default=[])


@struct
class LeavingMemberResult:
    member_id: string
    group_instance_id: nullable_string
    error_code: int16


@message(flexible=4)
class LeaveGroupResponse:
    """From version 3 on, errors of single members are in `members`."""

    throttle_time_ms: int32 = at(since=1, default=0, ignorable=True)
    error_code: int16
    members: list[LeavingMemberResult] = at(since=3, default=[])


API = Api(13, LeaveGroupRequest, LeaveGroupResponse, newest=5)
