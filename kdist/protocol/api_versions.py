"""ApiVersions (key 18): the API versions of the broker; the first request of nearly every client.

    version  changed
    0        a list of APIs with their ranges (KIP-35)
    1        response: throttle time (KIP-124)
    2        throttling happens after the response is sent (KIP-219)
    3        flexible (KIP-482); the client's software and its version (KIP-511); features (KIP-584)
    4        a feature's lowest version may be 0 (KAFKA-17011)

A version that the broker does not support is answered with a version 0 body: UNSUPPORTED_VERSION
and the range of this API (KIP-511). The header of the response is never flexible, since the client
cannot know which body it gets.
"""

from __future__ import annotations

import re

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int16, int32, int64, message, string, struct


@message(flexible=3)
class ApiVersionsRequest:
    """Names the client; INVALID_REQUEST unless `[a-zA-Z0-9](?:[a-zA-Z0-9\\-.]*[a-zA-Z0-9])?`."""

    client_software_name: string = at(since=3, default="", ignorable=True)
    client_software_version: string = at(since=3, default="", ignorable=True)


def named(version: str) -> str:
    """A version as brokers take it for the name of software: `0.1.0+site` is `0.1.0-site`."""
    return re.sub(r"[^a-zA-Z0-9.]+", "-", version).strip("-.") or "unknown"


@struct
class ApiVersion:
    """One API; both versions are in its range."""

    api_key: int16
    min_version: int16
    max_version: int16


@struct
class SupportedFeature:
    """A feature and the levels this broker could run it at."""

    name: string
    min_version: int16
    max_version: int16


@struct
class FinalizedFeature:
    """A feature and the levels the cluster has settled on."""

    name: string
    max_version_level: int16
    min_version_level: int16


@message(flexible=3)
class ApiVersionsResponse:
    """`finalized_features_epoch` -1: features are not in use."""

    error_code: int16
    api_keys: list[ApiVersion]
    throttle_time_ms: int32 = at(since=1, default=0, ignorable=True)
    supported_features: list[SupportedFeature] = at(since=3, tag=0, default=[], ignorable=True)
    finalized_features_epoch: int64 = at(since=3, tag=1, default=-1, ignorable=True)
    finalized_features: list[FinalizedFeature] = at(since=3, tag=2, default=[], ignorable=True)
    zk_migration_ready: bool = at(since=3, tag=3, default=False, ignorable=True)


API = Api(18, ApiVersionsRequest, ApiVersionsResponse, newest=4, has_plain_response_header=True)
