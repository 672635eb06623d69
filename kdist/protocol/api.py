"""An API of the protocol: its key and name, its two messages, and the supported versions.

Header versions follow from these: a flexible request has header v2 and a flexible response v1, with
one exception each, which the API's own file declares.

Both message classes refer to it as `api`, so that code with a message needs no version table.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from kdist.protocol.schema import flexible_since


@dataclasses.dataclass(frozen=True, slots=True)
class Api:
    """One row of the version table. Versions `oldest` to `newest` (inclusive) are supported."""

    key: int
    request: type[Any]
    response: type[Any]
    _: dataclasses.KW_ONLY
    oldest: int = 0
    newest: int
    # Whether only brokers send it: ApiVersions lists it on the inter-broker listener alone.
    is_between_brokers: bool = False
    # ControlledShutdown v0 has a header without a client id.
    is_version_0_nameless: bool = False
    # ApiVersions: a client may get a v0 body for any version, and must find where it begins.
    has_plain_response_header: bool = False

    def __post_init__(self) -> None:
        self.request.api = self.response.api = self

    @property
    def name(self) -> str:
        """As in Kafka's protocol: `Fetch`."""
        return self.request.__name__.removesuffix("Request")

    def has(self, version: int) -> bool:
        return self.oldest <= version <= self.newest

    def is_flexible(self, version: int) -> bool:
        """Whether request and response of `version` are flexible (KIP-482)."""
        return version >= flexible_since(self.request)

    def request_header_version(self, version: int) -> int:
        if version == 0 and self.is_version_0_nameless:
            return 0
        return 2 if self.is_flexible(version) else 1

    def response_header_version(self, version: int) -> int:
        return 1 if self.is_flexible(version) and not self.has_plain_response_header else 0
