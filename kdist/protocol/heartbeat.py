"""Heartbeat (key 12): a member is alive, and learns whether its group rebalances.

version  changed
1        response: throttle time (KIP-124)
2        throttling happens after the response is sent (KIP-219)
3        group instance id of static members (KIP-345)
4        flexible (KIP-482)
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int16, int32, message, nullable_string, string


@message(flexible=4)
class HeartbeatRequest:
    """The member and generation of its last JoinGroup response."""

    group_id: string
    generation_id: int32
    member_id: string
    group_instance_id: nullable_string = at(since=3, default=None)


@message(flexible=4)
class HeartbeatResponse:
    """REBALANCE_IN_PROGRESS asks the member to join again."""

    throttle_time_ms: int32 = at(since=1, default=0, ignorable=True)
    error_code: int16


API = Api(12, HeartbeatRequest, HeartbeatResponse, newest=4)
