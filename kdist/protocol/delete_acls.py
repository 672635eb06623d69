"""DeleteAcls (key 31): remove the ACLs that match filters (KIP-140).

version  changed
1        pattern_type_filter, pattern_type (KIP-290); before, patterns are literal
2        flexible (KIP-482)
3        the resource type USER (KIP-373)
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.describe_acls import LITERAL
from kdist.protocol.schema import at, int8, int16, int32, message, nullable_string, string, struct


@struct
class DeleteAclsFilter:
    """A filter without a name, principal or host is for any."""

    resource_type_filter: int8
    resource_name_filter: nullable_string
    pattern_type_filter: int8 = at(since=1, default=LITERAL)
    principal_filter: nullable_string
    host_filter: nullable_string
    operation: int8
    permission_type: int8


@message(flexible=2)
class DeleteAclsRequest:
    filters: list[DeleteAclsFilter]


@struct
class DeleteAclsMatchingAcl:
    """An ACL that was removed, or the reason why it was not."""

    error_code: int16
    error_message: nullable_string
    resource_type: int8
    resource_name: string
    pattern_type: int8 = at(since=1, default=LITERAL)
    principal: string
    host: string
    operation: int8
    permission_type: int8


@struct
class DeleteAclsFilterResult:
    """An ACL is told with the first filter that it matches."""

    error_code: int16
    error_message: nullable_string
    matching_acls: list[DeleteAclsMatchingAcl]


@message(flexible=2)
class DeleteAclsResponse:
    throttle_time_ms: int32 = 0
    filter_results: list[DeleteAclsFilterResult]


API = Api(31, DeleteAclsRequest, DeleteAclsResponse, newest=3)
