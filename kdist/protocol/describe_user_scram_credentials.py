"""DescribeUserScramCredentials (key 50): which SCRAM credentials users have (KIP-554).

It is flexible (KIP-482) from its first version, 0. No salt and no key is told.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import int8, int16, int32, message, nullable_string, string, struct

MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""The mechanisms by their codes; 0 is an unknown one."""


@struct
class UserName:
    name: string


@message(flexible=0)
class DescribeUserScramCredentialsRequest:
    """No users, or None, asks for all that have credentials."""

    users: list[UserName] | None = None


@struct
class CredentialInfo:
    mechanism: int8
    iterations: int32


@struct
class DescribedUser:
    user: string
    error_code: int16
    error_message: nullable_string = None
    credential_infos: list[CredentialInfo]


@message(flexible=0)
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: int32 = 0
    error_code: int16
    error_message: nullable_string = None
    results: list[DescribedUser]


API = Api(50, DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse, newest=0)
