"""DescribeConfigs (key 32): the settings of topics, and of this broker, as they are in force.

    resource      settings
    a topic       its own where it has any, else this broker's, else the default
    this broker   its file's, else the default; read-only, as they are read when it starts
    all brokers   (no name) the settings that are kept for all in ZooKeeper: there are none

Each setting says where its value is from, and every other layer that has one (KIP-226).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from kdist.broker.stored_settings import Overrides, StoredSettings
from kdist.config.broker_config import BrokerConfig
from kdist.config.faults import ConfigError
from kdist.config.layers import Described, Source
from kdist.controller.loading import gather
from kdist.errors import ApiError, Error
from kdist.protocol.describe_configs import (
    ALL_BROKERS,
    BROKER,
    TOPIC,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedResource,
    DescribedResourceResult,
    DescribedSetting,
    SettingSynonym,
)


class DescribeConfigsHandler:
    """Owner: the broker. `told` is set once this broker knows the cluster's topics."""

    def __init__(
        self, stored: StoredSettings, config: Callable[[], BrokerConfig], told: asyncio.Event
    ) -> None:
        self._stored = stored
        self._config = config
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
            found = await self._settings(asked)
        except ApiError as error:
            result.error_code, result.error_message = error.error, error.detail
            return result
        names = asked.configuration_keys
        is_read_only = asked.resource_type == BROKER
        result.configs = [
            _described(each, is_read_only, request)
            for each in found
            if not names or each.name in names
        ]
        return result

    async def _settings(self, asked: DescribedResource) -> Iterable[Described]:
        if asked.resource_type == TOPIC:
            self._stored.check_known(asked.resource_name)
            return self._topic(await self._stored.read(asked.resource_name))
        if asked.resource_type != BROKER:
            raise unknown_type(asked.resource_type)
        if asked.resource_name == ALL_BROKERS:
            return ()
        config = self._config()
        _check_broker(asked.resource_name, config.broker.id)
        return config.describe()

    def _topic(self, overrides: Overrides) -> Iterable[Described]:
        """What is in force: what cannot be used of the topic's own is not (see TopicOverrides)."""
        config = self._config()
        try:
            config.topic(overrides)
        except ConfigError:
            overrides = {}
        return config.describe_topic(overrides)


def _check_broker(name: str, broker_id: int) -> None:
    """ApiError INVALID_REQUEST unless `name` is this broker's id."""
    if name != str(broker_id):
        raise ApiError(Error.INVALID_REQUEST, f"this is broker {broker_id}, not broker {name!r}")


def unknown_type(resource_type: int) -> ApiError:
    """INVALID_REQUEST for a resource that has no settings here."""
    return ApiError(
        Error.INVALID_REQUEST,
        f"resource type {resource_type}: only topics ({TOPIC}) and brokers ({BROKER}) have"
        " settings here",
    )


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
