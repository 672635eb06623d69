"""IncrementalAlterConfigs (key 44): change single settings of topics and brokers (KIP-339).

version  changed
1        flexible (KIP-482)
"""

from __future__ import annotations

from kdist.protocol.alter_configs import AlteredResourceResult
from kdist.protocol.api import Api
from kdist.protocol.schema import at, int8, int32, message, nullable_string, string, struct

SET, DELETE, APPEND, SUBTRACT = range(4)  # operations; the last two are for lists


@struct
class SettingChange:
    """What is done to one setting; `value` is None where it is deleted."""

    name: string
    config_operation: int8
    value: nullable_string = at(secret=True)


@struct
class ChangedResource:
    """The changes of one resource, made together or not at all."""

    resource_type: int8
    resource_name: string
    configs: list[SettingChange]


@message(flexible=1)
class IncrementalAlterConfigsRequest:
    """Resources succeed and fail one by one."""

    resources: list[ChangedResource]
    validate_only: bool


@message(flexible=1)
class IncrementalAlterConfigsResponse:
    throttle_time_ms: int32 = 0
    responses: list[AlteredResourceResult]


API = Api(44, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, newest=1)
