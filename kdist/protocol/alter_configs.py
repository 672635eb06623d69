"""AlterConfigs (key 33): replace all settings of a topic or a broker (KIP-133).

version  changed
1        throttling happens after the response is sent (KIP-219)
2        flexible (KIP-482)

Settings that are not named return to their defaults; IncrementalAlterConfigs leaves those alone.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int8, int16, int32, message, nullable_string, string, struct


@struct
class ReplacingSetting:
    """A setting; None takes the default."""

    name: string
    value: nullable_string = at(secret=True)


@struct
class ReplacedResource:
    """All settings that one resource is to override."""

    resource_type: int8
    resource_name: string
    configs: list[ReplacingSetting]


@message(flexible=2)
class AlterConfigsRequest:
    """Resources succeed and fail one by one."""

    resources: list[ReplacedResource]
    validate_only: bool


@struct
class AlteredResourceResult:
    """Whether one resource has its new settings."""

    error_code: int16
    error_message: nullable_string
    resource_type: int8
    resource_name: string


@message(flexible=2)
class AlterConfigsResponse:
    throttle_time_ms: int32 = 0
    responses: list[AlteredResourceResult]


API = Api(33, AlterConfigsRequest, AlterConfigsResponse, newest=2)
