"""DeleteGroups (key 42): delete groups with their committed offsets (KIP-229).

version  changed
1        throttling happens after the response is sent (KIP-219)
2        flexible (KIP-482)

Sent to the groups' coordinator. A group that has members gets NON_EMPTY_GROUP.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import int16, int32, message, string, struct


@message(flexible=2)
class DeleteGroupsRequest:
    groups_names: list[string]


@struct
class DeletedGroupResult:
    group_id: string
    error_code: int16


@message(flexible=2)
class DeleteGroupsResponse:
    throttle_time_ms: int32 = 0
    results: list[DeletedGroupResult]


API = Api(42, DeleteGroupsRequest, DeleteGroupsResponse, newest=2)
