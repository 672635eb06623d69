"""AlterUserScramCredentials (key 51): set and delete SCRAM credentials of users (KIP-554).

It is flexible (KIP-482) from its first version, 0. It carries salted passwords, each of which is as
good as the password for whoever has the salt, too.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import (
    at,
    bytes_,
    int8,
    int16,
    int32,
    message,
    nullable_string,
    string,
    struct,
)


@struct
class ScramDeletion:
    name: string
    mechanism: int8


@struct
class ScramUpsertion:
    name: string
    mechanism: int8
    iterations: int32
    salt: bytes_ = at(secret=True)
    salted_password: bytes_ = at(secret=True)


@message(flexible=0)
class AlterUserScramCredentialsRequest:
    """One user's changes are made together or not at all; users succeed and fail one by one."""

    deletions: list[ScramDeletion]
    upsertions: list[ScramUpsertion]


@struct
class AlteredUser:
    user: string
    error_code: int16
    error_message: nullable_string = None


@message(flexible=0)
class AlterUserScramCredentialsResponse:
    throttle_time_ms: int32 = 0
    results: list[AlteredUser]


API = Api(51, AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, newest=0)
