"""SaslHandshake (key 17): names the SASL mechanism by which a connection is authenticated.

    version  changed
    0        the mechanism's tokens follow in frames of their own, without headers (KIP-43)
    1        the tokens follow in SaslAuthenticate requests (KIP-152)

There is no version 2: clients until 2.4 would negotiate it wrongly (KAFKA-9577).
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import int16, message, string


@message()
class SaslHandshakeRequest:
    mechanism: string


@message()
class SaslHandshakeResponse:
    """`mechanisms`: those that the listener has enabled, whether or not the one asked for is."""

    error_code: int16
    mechanisms: list[string]


API = Api(17, SaslHandshakeRequest, SaslHandshakeResponse, newest=1)
