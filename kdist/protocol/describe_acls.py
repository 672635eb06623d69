"""DescribeAcls (key 29): ACLs that match a filter (KIP-140).

version  changed
1        pattern_type_filter, pattern_type (KIP-290); before, patterns are literal
2        flexible (KIP-482)
3        the resource type USER (KIP-373)

Types, operations and permissions are the codes in `kdist/security/acls.py`.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int8, int16, int32, message, nullable_string, string, struct

LITERAL = 3  # the type of patterns that older versions mean


@message(flexible=2)
class DescribeAclsRequest:
    """A filter without a name, principal or host is for any."""

    resource_type_filter: int8
    resource_name_filter: nullable_string
    pattern_type_filter: int8 = at(since=1, default=LITERAL)
    principal_filter: nullable_string
    host_filter: nullable_string
    operation: int8
    permission_type: int8


@struct
class AclDescription:
    principal: string
    host: string
    operation: int8
    permission_type: int8


@struct
class DescribeAclsResource:
    """A pattern, and those of its ACLs that match."""

    resource_type: int8
    resource_name: string
    pattern_type: int8 = at(since=1, default=LITERAL)
    acls: list[AclDescription]


@message(flexible=2)
class DescribeAclsResponse:
    throttle_time_ms: int32 = 0
    error_code: int16
    error_message: nullable_string = None
    resources: list[DescribeAclsResource] = at(default=[])


API = Api(29, DescribeAclsRequest, DescribeAclsResponse, newest=3)
