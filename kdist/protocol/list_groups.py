"""ListGroups (key 16): the groups that a broker coordinates.

version  changed
1        response: throttle time (KIP-124)
2        throttling happens after the response is sent (KIP-219)
3        flexible (KIP-482)
4        a filter by state; response: state (KIP-518)
5        a filter by type; response: type (KIP-848)
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int16, int32, message, string, struct


@message(flexible=3)
class ListGroupsRequest:
    """An empty filter takes everything."""

    states_filter: list[string] = at(since=4, default=[])
    types_filter: list[string] = at(since=5, default=[])


@struct
class ListedGroup:
    group_id: string
    protocol_type: string
    group_state: string = at(since=4, default="", ignorable=True)
    group_type: string = at(since=5, default="", ignorable=True)


@message(flexible=3)
class ListGroupsResponse:
    """This broker's groups only: clients ask every broker."""

    throttle_time_ms: int32 = at(since=1, default=0, ignorable=True)
    error_code: int16
    groups: list[ListedGroup]


API = Api(16, ListGroupsRequest, ListGroupsResponse, newest=5)
