"""ApiVersions (key 18): what this broker speaks, which is all of the version table for clients.

On the inter-broker listener it is the table's other rows, too: Apache Kafka's brokers ask before
they send AlterPartition or AllocateProducerIds to the controller.
"""

from __future__ import annotations

import re

from kdist.errors import Error
from kdist.protocol.api_versions import API, ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kdist.protocol.versions import advertised_versions

KEY = API.key

_FIRST_VERSION_WITH_SOFTWARE = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


def answer(request: ApiVersionsRequest, version: int, *, to_brokers: bool) -> ApiVersionsResponse:
    """The ranges; INVALID_REQUEST for software whose name is not one (KIP-511)."""
    if version >= _FIRST_VERSION_WITH_SOFTWARE and not _is_named(request):
        return ApiVersionsResponse(error_code=Error.INVALID_REQUEST, api_keys=[])
    versions = advertised_versions(to_brokers=to_brokers)
    return ApiVersionsResponse(error_code=Error.NONE, api_keys=versions)


def unsupported() -> ApiVersionsResponse:
    """For a version that this broker lacks: the range of those it has."""
    own = ApiVersion(api_key=API.key, min_version=API.oldest, max_version=API.newest)
    return ApiVersionsResponse(error_code=Error.UNSUPPORTED_VERSION, api_keys=[own])


def _is_named(request: ApiVersionsRequest) -> bool:
    named = (request.client_software_name, request.client_software_version)
    return all(_SOFTWARE.match(text) for text in named)
