"""Settings described and changed through a broker in virtual time, for the tests of that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kdist.config.layers import Source
from kdist.config.topic import TopicSettings
from kdist.network.client import Client
from kdist.protocol.alter_configs import (
    AlterConfigsRequest,
    AlteredResourceResult,
    ReplacedResource,
    ReplacingSetting,
)
from kdist.protocol.describe_configs import (
    ALL_BROKERS,
    BROKER,
    TOPIC,
    DescribeConfigsRequest,
    DescribedResource,
    DescribedResourceResult,
    DescribedSetting,
)
from kdist.protocol.incremental_alter_configs import (
    DELETE,
    SET,
    ChangedResource,
    IncrementalAlterConfigsRequest,
    SettingChange,
)
from tests.simulator.cluster import Cluster, create

OWN, SHARED = Source.DYNAMIC_BROKER_CONFIG, Source.DYNAMIC_DEFAULT_BROKER_CONFIG
RETENTION = "log.retention.ms"
FILES_MS = 3 * 3_600_000  # what the broker's file says in `with_topic`


async def describe(
    client: Client,
    name: str = "clicks",
    kind: int = TOPIC,
    version: int = 4,
    *,
    keys: list[str] | None = None,
    **asked: Any,
) -> DescribedResourceResult:
    """One resource."""
    resource = DescribedResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    answer = await client.send(DescribeConfigsRequest(resources=[resource], **asked), version)
    (result,) = answer.results
    assert isinstance(result, DescribedResourceResult)
    return result


def by_name(result: DescribedResourceResult) -> dict[str, DescribedSetting]:
    assert result.error_code == 0, result.error_message
    return {each.name: each for each in result.configs}


async def replace(
    client: Client,
    settings: Mapping[str, str | None],
    name: str = "clicks",
    kind: int = TOPIC,
    version: int = 2,
    *,
    is_trial: bool = False,
) -> AlteredResourceResult:
    """Give one resource these settings."""
    configs = [ReplacingSetting(name=each, value=value) for each, value in settings.items()]
    resource = ReplacedResource(resource_type=kind, resource_name=name, configs=configs)
    request = AlterConfigsRequest(resources=[resource], validate_only=is_trial)
    (result,) = (await client.send(request, version)).responses
    assert isinstance(result, AlteredResourceResult)
    return result


async def change(
    client: Client,
    *changes: tuple[str, int, str | None],
    name: str = "clicks",
    kind: int = TOPIC,
    version: int = 1,
    is_trial: bool = False,
) -> AlteredResourceResult:
    """Change some settings of one resource."""
    configs = [
        SettingChange(name=each, config_operation=operation, value=value)
        for each, operation, value in changes
    ]
    resource = ChangedResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=is_trial)
    (result,) = (await client.send(request, version)).responses
    assert isinstance(result, AlteredResourceResult)
    return result


async def own(
    client: Client,
    name: str = "clicks",
    kind: int = TOPIC,
    source: Source = Source.DYNAMIC_TOPIC_CONFIG,
) -> dict[str, str | None]:
    """What the resource has of its own."""
    found = by_name(await describe(client, name, kind))
    return {name: each.value for name, each in found.items() if each.config_source == source}


async def set_(client: Client, broker: str, name: str, value: str) -> None:
    result = await change(client, (name, SET, value), name=broker, kind=BROKER)
    assert (result.error_code, result.error_message) == (0, None)


async def unset(client: Client, broker: str, name: str) -> None:
    result = await change(client, (name, DELETE, None), name=broker, kind=BROKER)
    assert result.error_code == 0, result.error_message


async def own_of_broker(client: Client, broker: str = "1") -> dict[str, str | None]:
    return await own(client, broker, BROKER, OWN)


async def own_of_all(client: Client) -> dict[str, str | None]:
    return await own(client, ALL_BROKERS, BROKER, SHARED)


def settings_of(cluster: Cluster, topic: str = "clicks", broker: int = 1) -> TopicSettings:
    logs = cluster.brokers[broker].service.directory.logs
    return next(log.settings for key, log in logs.items() if key.topic == topic)


async def with_topic(cluster: Cluster, /, **configs: str) -> Client:
    """A client of a broker with a topic, and a default of its own for one setting."""
    await cluster.started(log_retention_hours="3")
    client = await cluster.client()
    assert (await create(client, "clicks", **configs)).error_code == 0
    return client
