"""CreateAcls (key 30): ACLs to be added (KIP-140).

version  changed
1        resource_pattern_type (KIP-290); before, patterns are literal
2        flexible (KIP-482)
3        the resource type USER (KIP-373)
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.describe_acls import LITERAL
from kdist.protocol.schema import at, int8, int16, int32, message, nullable_string, string, struct


@struct
class AclCreation:
    resource_type: int8
    resource_name: string
    resource_pattern_type: int8 = at(since=1, default=LITERAL)
    principal: string
    host: string
    operation: int8
    permission_type: int8


@message(flexible=2)
class CreateAclsRequest:
    """ACLs succeed and fail one by one; one that there is already succeeds."""

    creations: list[AclCreation]


@struct
class AclCreationResult:
    error_code: int16
    error_message: nullable_string


@message(flexible=2)
class CreateAclsResponse:
    """A result for each ACL, in the order of the request."""

    throttle_time_ms: int32 = 0
    results: list[AclCreationResult]


API = Api(30, CreateAclsRequest, CreateAclsResponse, newest=3)
