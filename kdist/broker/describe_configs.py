"""DescribeConfigs (key 32): the settings of topics, and of this broker, as they are in force.

What is in force is said by the resource (`resources.py`). Each setting says where its value is
from, and every other layer that has one (KIP-226). Of a broker's those are read-only that it reads
when it starts.
"""

from __future__ import annotations

import asyncio

from kdist.broker.resources import Resources
from kdist.broker.stored_settings import StoredSettings
from kdist.config.layers import Described, Source
from kdist.controller.loading import gather
from kdist.errors import ApiError, Error
from kdist.protocol.describe_configs import (
    BROKER,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedResource,
    DescribedResourceResult,
    DescribedSetting,
    SettingSynonym,
)


class DescribeConfigsHandler:
    """Owner: the broker. `told` is set once this broker knows the cluster's topics."""

    def __init__(self, stored: StoredSettings, resources: Resources, told: asyncio.Event) -> None:
        self._stored = stored
        self._resources = resources
        self._told = told

    async def answer(self, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        """One result for each resource, in the order of the request."""
        await self._told.wait()
        results = await gather(self._result(each, request) for each in request.resources)
        return DescribeConfigsResponse(results=list(results))

    async def _result(
        self, asked: DescribedResource, request: DescribeConfigsRequest
    ) -> DescribedResourceResult:
        result = DescribedResourceResult(
            error_code=Error.NONE,
            error_message=None,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=[],
        )
        try:
            resource = self._resources.find(asked.resource_type, asked.resource_name)
            found = await resource.describe(self._stored)
        except ApiError as error:
            result.error_code, result.error_message = error.error, error.detail
            return result
        names = asked.configuration_keys
        result.configs = [
            _described(each, asked.resource_type == BROKER and not each.row.is_dynamic, request)
            for each in found
            if not names or each.name in names
        ]
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
