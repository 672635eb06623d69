"""DescribeConfigs (key 32): the effective settings of topics and this broker; loggers' levels.

`resources.py` determines the effective value. Each setting comes with the source of its value, and
with its synonyms, the values in other layers (KIP-226). A broker's settings are read-only if it
reads them only when it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kdist.broker.settings.loggers import Loggers
from kdist.broker.settings.resources import Resource, Resources
from kdist.broker.settings.stored import Overrides, Owner, StoredSettings
from kdist.config.layers import Described, Source
from kdist.errors import ApiError, Error
from kdist.protocol.describe_configs import (
    BROKER,
    BROKER_LOGGER,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedResource,
    DescribedResourceResult,
    DescribedSetting,
    SettingSynonym,
)

_Found = Resource | list[DescribedSetting] | ApiError
"""What a request names: one to describe, the levels of loggers, or why there is neither."""
_Alike = tuple[Source, tuple[tuple[str, str], ...], tuple[str, ...]]
"""Hundreds of topics share a description if they agree in these: source, settings, names asked."""


class DescribeConfigsHandler:
    """Owner: the broker. `told` is set once this broker knows the cluster's topics."""

    def __init__(
        self,
        stored: StoredSettings,
        resources: Resources,
        loggers: Loggers,
        told: asyncio.Event,
    ) -> None:
        self._stored = stored
        self._resources = resources
        self._loggers = loggers
        self._told = told

    async def answer(self, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        """One result for each resource, in the order of the request."""
        await self._told.wait()
        found = [self._find(each) for each in request.resources]
        resources = (each for each in found if isinstance(each, Resource))
        own = await self._stored.read_all([r.owner for r in resources if not r.is_followed])
        described: dict[_Alike, list[DescribedSetting]] = {}
        results = [
            _result(asked, each, own, described, request)
            for asked, each in zip(request.resources, found, strict=True)
        ]
        return DescribeConfigsResponse(results=results)

    def _find(self, asked: DescribedResource) -> _Found:
        try:
            if asked.resource_type == BROKER_LOGGER:
                return self._loggers.describe(asked.resource_name)
            return self._resources.find(asked.resource_type, asked.resource_name)
        except ApiError as error:
            return error


def _result(
    asked: DescribedResource,
    found: _Found,
    read: Mapping[Owner, Overrides | ApiError],
    described: dict[_Alike, list[DescribedSetting]],
    request: DescribeConfigsRequest,
) -> DescribedResourceResult:
    result = DescribedResourceResult(
        error_code=Error.NONE,
        error_message=None,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=[],
    )
    names = asked.configuration_keys or ()
    if isinstance(found, list):
        result.configs = [each for each in found if not names or each.name in names]
        return result
    own = found if isinstance(found, ApiError) else read.get(found.owner, {})
    if isinstance(own, ApiError):
        result.error_code, result.error_message = own.error, own.detail
        return result
    assert not isinstance(found, ApiError), "its error was answered above"
    alike = found.source, tuple(own.items()), tuple(names)
    if alike not in described:
        described[alike] = [
            _described(each, asked.resource_type == BROKER and not each.row.is_dynamic, request)
            for each in found.describe(own)
            if not names or each.name in names
        ]
    result.configs = described[alike]
    return result


def _described(
    each: Described, is_read_only: bool, request: DescribeConfigsRequest
) -> DescribedSetting:
    row = each.row
    synonyms = [
        SettingSynonym(name=name, value=None if row.is_secret else text, source=source)
        for name, text, source in (each.origins if request.include_synonyms else ())
    ]
    return DescribedSetting(
        name=each.name,
        value=None if row.is_secret else each.text,
        read_only=is_read_only,
        config_source=each.source,
        is_default=each.source is Source.DEFAULT_CONFIG,
        is_sensitive=row.is_secret,
        synonyms=synonyms,
        config_type=row.shape.kind,
        documentation=row.doc if request.include_documentation else None,
    )
