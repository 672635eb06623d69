"""Settings of topics and brokers: describe those in force, and change single ones.

Any broker can describe a topic's settings; only the broker itself describes its own. Changes are
incremental (KIP-339, Kafka 2.3): settings that are not named stay as they are. An older broker can
only replace all settings at once, which might undo another client's change, so with one of those
UNSUPPORTED_VERSION is raised instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kdist.client.admin.asking import ask_brokers, ask_controller
from kdist.client.admin.outcomes import fault_of, listed, settled
from kdist.client.cluster import Cluster
from kdist.errors import ApiError, Error
from kdist.protocol.describe_configs import (
    ALL_BROKERS,
    BROKER,
    TOPIC,
    DescribeConfigsRequest,
    DescribedResource,
    DescribedSetting,
)
from kdist.protocol.incremental_alter_configs import (
    DELETE,
    SET,
    ChangedResource,
    IncrementalAlterConfigsRequest,
    SettingChange,
)

OF_TOPIC = "topic"
SHARED = "all brokers"

# By their numbers on the wire (KIP-226); 0 and -1 come from brokers that do not say.
SOURCES = {
    1: OF_TOPIC,
    2: "broker",
    3: SHARED,
    4: "file",
    5: "default",
    6: "logger",
}
_SOURCE_OF_OLD = {True: "default", False: "set"}  # by `is_default`, all that Kafka 1.0 says


class Setting(NamedTuple):
    """A setting in force; `value` is None if it is not set, or secret.

    `source` says where the value comes from: one of `SOURCES`, or "set" where an old broker does
    not say more. `doc` is empty unless it was requested.
    """

    name: str
    value: str | None
    source: str
    is_default: bool
    is_secret: bool
    is_read_only: bool
    doc: str = ""


Settings = dict[str, Setting]


async def describe_topic_configs(
    cluster: Cluster, topics: Iterable[str], *, with_docs: bool = False
) -> dict[str, Settings]:
    """All settings in force for each topic, by topic and setting name."""
    request = _described(TOPIC, listed(topics), with_docs)
    return settled(await _ask_any(cluster, request, "topic"))


async def describe_broker_configs(
    cluster: Cluster, brokers: Iterable[int] | None = None, *, with_docs: bool = False
) -> dict[int, Settings]:
    """All settings in force on each broker, by id and setting name; with None, on all brokers."""

    async def ask(broker: int) -> Settings:
        request = _described(BROKER, [str(broker)], with_docs)
        found = _read_settings(await cluster.ask(request, broker), "broker")
        return settled(found)[str(broker)]

    wanted = None if brokers is None else list(brokers)
    return settled(await ask_brokers(cluster, ask, wanted))


async def describe_default_broker_configs(cluster: Cluster, *, with_docs: bool = False) -> Settings:
    """The dynamic settings shared by all brokers, by name.

    They are in force on each broker that has no dynamic value of its own.
    """
    request = _described(BROKER, [ALL_BROKERS], with_docs)
    found = await _ask_any(cluster, request, "broker")
    fault = found[ALL_BROKERS]
    if isinstance(fault, ApiError) and fault.error is Error.INVALID_REQUEST:
        return {}  # before Kafka 1.1 there were no dynamic settings
    return settled(found)[ALL_BROKERS]


async def _ask_any(
    cluster: Cluster, request: DescribeConfigsRequest, noun: str
) -> dict[str, Settings | ApiError]:
    await cluster.retried(cluster.metadata)

    async def ask() -> Any:
        return await (await cluster.any_client()).send(request)

    return _read_settings(await cluster.retried(ask), noun)


def _described(kind: int, names: Iterable[str], with_docs: bool) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribedResource(resource_type=kind, resource_name=name, configuration_keys=None)
            for name in names
        ],
        include_documentation=with_docs,
    )


def _read_settings(answer: Any, noun: str) -> dict[str, Settings | ApiError]:
    return {
        each.resource_name: fault_of(
            each.error_code, f"{noun} {each.resource_name}".rstrip(), each.error_message
        )
        or {found.name: _setting(found) for found in each.configs}
        for each in answer.results
    }


def _setting(found: DescribedSetting) -> Setting:
    source = SOURCES.get(found.config_source, _SOURCE_OF_OLD[found.is_default])
    return Setting(
        found.name,
        found.value,
        source,
        source == "default",
        found.is_sensitive,
        found.read_only,
        found.documentation or "",
    )


async def incremental_alter_topic_configs(
    cluster: Cluster,
    topic: str,
    given: Mapping[str, str] | None = None,
    unset: Iterable[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Set some of a topic's settings, and unset others; all or none of the changes are made.

    An unset one falls back to the brokers' value. `validate_only` checks without changing.
    """
    request = _changed(TOPIC, topic, given or {}, unset, validate_only)
    await ask_controller(cluster, request, lambda answer: _read_change(answer, f"topic {topic}"))


async def incremental_alter_broker_configs(
    cluster: Cluster,
    broker: int | None,
    given: Mapping[str, str] | None = None,
    unset: Iterable[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Change dynamic settings of a running broker, or with None those shared by all brokers.

    All or none of the changes are made. INVALID_REQUEST for a setting that only takes effect when a
    broker starts.
    """
    name = ALL_BROKERS if broker is None else str(broker)
    request = _changed(BROKER, name, given or {}, unset, validate_only)
    about = "all brokers" if broker is None else f"broker {broker}"
    if broker is None:
        await ask_controller(cluster, request, lambda answer: _read_change(answer, about))
        return

    async def ask(asked: int) -> None:
        _read_change(await cluster.ask(request, asked), about)

    (outcome,) = (await ask_brokers(cluster, ask, [broker])).values()
    if outcome is not None:
        raise outcome


def _changed(
    kind: int, name: str, values: Mapping[str, str], unset: Iterable[str], validate_only: bool
) -> IncrementalAlterConfigsRequest:
    names = listed(unset)
    changes = [SettingChange(name=key, config_operation=SET, value=values[key]) for key in values]
    changes += [SettingChange(name=key, config_operation=DELETE, value=None) for key in names]
    resource = ChangedResource(resource_type=kind, resource_name=name, configs=changes)
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)


def _read_change(answer: Any, about: str) -> None:
    for each in answer.responses:
        is_other = each.error_code == Error.NOT_CONTROLLER
        error = fault_of(each.error_code, "" if is_other else about, each.error_message)
        if error is not None:
            raise error
