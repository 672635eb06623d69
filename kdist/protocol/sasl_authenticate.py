"""SaslAuthenticate (key 36): one message of the SASL mechanism, and the other side's (KIP-152).

version  changed
1        response: how long the session lasts (KIP-368)
2        flexible (KIP-482)
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, bytes_, int16, int64, message, nullable_string


@message(flexible=2)
class SaslAuthenticateRequest:
    auth_bytes: bytes_ = at(secret=True)


@message(flexible=2)
class SaslAuthenticateResponse:
    """`session_lifetime_ms`: by when the client has to authenticate again; 0 if it need not."""

    error_code: int16
    error_message: nullable_string = None
    auth_bytes: bytes_ = at(secret=True)
    session_lifetime_ms: int64 = at(since=1, default=0, ignorable=True)


API = Api(36, SaslAuthenticateRequest, SaslAuthenticateResponse, newest=2)
