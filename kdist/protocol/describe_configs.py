"""DescribeConfigs (key 32): the settings of topics and brokers as they are in force.

    version  changed
    0        a setting, and whether it is the default (KIP-133)
    1        where a setting comes from, and its synonyms, for is_default (KIP-226)
    2        throttling happens after the response is sent (KIP-219)
    3        a setting's type and documentation (KIP-569)
    4        flexible (KIP-482)

Requests for a broker's settings go to that broker, those for a topic's to any.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int8, int16, int32, message, nullable_string, string, struct

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8  # resource types that have settings (KIP-133, KIP-412)
ALL_BROKERS = ""  # as a broker's name: the settings that all brokers have together (KIP-226)


@struct
class DescribedResource:
    """A topic, or a broker by its id; `configuration_keys` None asks for all settings."""

    resource_type: int8
    resource_name: string
    configuration_keys: list[string] | None


@message(flexible=4)
class DescribeConfigsRequest:
    """`include_synonyms` asks for every layer that has a setting, not only the one in force."""

    resources: list[DescribedResource]
    include_synonyms: bool = at(since=1, default=False)
    include_documentation: bool = at(since=3, default=False)


@struct
class SettingSynonym:
    """One layer's value of a setting, under the name it has in that layer."""

    name: string
    value: nullable_string
    source: int8


@struct
class DescribedSetting:
    """A setting in force; `value` is None if it is sensitive."""

    name: string
    value: nullable_string
    read_only: bool
    config_source: int8 = at(since=1, default=-1, ignorable=True)
    is_default: bool = at(until=0, default=False, ignorable=True)
    is_sensitive: bool
    synonyms: list[SettingSynonym] = at(since=1, default=[], ignorable=True)
    config_type: int8 = at(since=3, default=0, ignorable=True)
    documentation: nullable_string = at(since=3, default=None, ignorable=True)


@struct
class DescribedResourceResult:
    error_code: int16
    error_message: nullable_string
    resource_type: int8
    resource_name: string
    configs: list[DescribedSetting]


@message(flexible=4)
class DescribeConfigsResponse:
    throttle_time_ms: int32 = 0
    results: list[DescribedResourceResult]


API = Api(32, DescribeConfigsRequest, DescribeConfigsResponse, newest=4)
