"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs (keys 32, 33, 44): dynamic settings.

They are those of topics and brokers, and the levels of this broker's loggers, which are described
and changed alike but by DescribeConfigs and IncrementalAlterConfigs alone (KIP-412). Resources
succeed or fail independently, each as a whole. `settings/resources.py` says which broker accepts
which resource, and determines the effective values. The broker that is asked writes to ZooKeeper,
from which all brokers read; its loggers' levels last until its process ends.

Source: KIP-133, KIP-226, KIP-339, Kafka's `ZkAdminManager`, `ConfigAdminManager`, `ConfigHelper`
and `RuntimeLoggerManager`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from kdist.broker.settings.resources import Resource, Resources
from kdist.broker.settings.stored import Overrides, Owner, StoredSettings
from kdist.config.kinds import Kind
from kdist.config.layers import Described, Source
from kdist.errors import ApiError, Error
from kdist.protocol.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlteredResourceResult,
    ReplacedResource,
    ReplacingSetting,
)
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
from kdist.protocol.incremental_alter_configs import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    ChangedResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    SettingChange,
)
from kdist.runtime.diagnostics import LogLevels
from kdist.zk.client import gather

logger = logging.getLogger(__name__)

_SOURCE_LEVEL = 6  # DescribeConfigs' `ConfigSource` of a logger's level

Plan = Callable[[Overrides], Overrides]
Asked = ReplacedResource | ChangedResource
PlanFor = Callable[[Asked, Resource], Plan]
_Found = Resource | list[DescribedSetting] | ApiError
"""What a request names: one to describe, the levels of loggers, or why there is neither."""
_Alike = tuple[Source, tuple[tuple[str, str], ...], tuple[str, ...]]
"""Hundreds of topics share a description if they agree in these: source, settings, names asked."""


class ConfigsHandler:
    """Owner: the broker. `loaded` is set once this broker knows the cluster's topics."""

    def __init__(
        self,
        stored: StoredSettings,
        resources: Resources,
        loggers: Loggers,
        loaded: asyncio.Event,
    ) -> None:
        self._stored = stored
        self._resources = resources
        self._loggers = loggers
        self._loaded = loaded

    # Describing

    async def describe(self, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        """DescribeConfigs: one result for each resource, in the order of the request.

        Each setting comes with the source of its value, and with its synonyms, the values in other
        layers (KIP-226). A broker's settings are read-only if it reads them only when it starts.
        """
        await self._loaded.wait()
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

    # Changing

    async def replace(self, request: AlterConfigsRequest) -> AlterConfigsResponse:
        """AlterConfigs: one result for each resource; all its dynamic settings are replaced."""
        results = await self._all(request.resources, request.validate_only, _replaced)
        return AlterConfigsResponse(responses=results)

    async def change(
        self, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        """IncrementalAlterConfigs: one result for each resource.

        The outcome is checked as a whole, and INVALID_CONFIG reports every fault.
        """
        results = await self._all(request.resources, request.validate_only, _changed)
        return IncrementalAlterConfigsResponse(responses=results)

    async def _all(
        self, resources: Sequence[Asked], is_trial: bool, plan_for: PlanFor
    ) -> list[AlteredResourceResult]:
        await self._loaded.wait()
        counts = Counter((each.resource_type, each.resource_name) for each in resources)
        return list(
            await gather(
                self._one(
                    each,
                    is_trial,
                    counts[each.resource_type, each.resource_name] == 1,
                    plan_for,
                )
                for each in resources
            )
        )

    async def _one(
        self, asked: Asked, is_trial: bool, is_named_once: bool, plan_for: PlanFor
    ) -> AlteredResourceResult:
        result = AlteredResourceResult(
            error_code=Error.NONE,
            error_message=None,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
        )
        try:
            if not is_named_once:
                raise ApiError(Error.INVALID_REQUEST, "the request names the resource twice")
            if isinstance(asked, ChangedResource) and asked.resource_type == BROKER_LOGGER:
                _check_changes(asked)
                self._loggers.change(asked.resource_name, asked.configs, is_trial=is_trial)
                return result
            resource = self._resources.find(asked.resource_type, asked.resource_name)
            plan = plan_for(asked, resource)
            if is_trial:
                plan(await self._stored.read(resource.owner))
            else:
                await self._stored.change(resource.owner, plan)
        except ApiError as error:
            result.error_code, result.error_message = error.error, error.detail
        return result


class Loggers:
    """The levels of this broker's loggers. Owner: the broker.

    Names and levels are checked before any is changed.
    """

    def __init__(self, broker_id: int, levels: LogLevels) -> None:
        self._broker_id = broker_id
        self._levels = levels

    def describe(self, broker: str) -> list[DescribedSetting]:
        """Each logger with its level; `broker` must be this one. ApiError INVALID_REQUEST."""
        self._check_broker(broker)
        return [
            DescribedSetting(
                name=name,
                value=level,
                read_only=False,
                config_source=_SOURCE_LEVEL,
                is_sensitive=False,
            )
            for name, level in self._levels.all().items()
        ]

    def change(self, broker: str, changes: Sequence[SettingChange], *, is_trial: bool) -> None:
        """Change the levels that are named. ApiError INVALID_REQUEST, INVALID_CONFIG."""
        self._check_broker(broker)
        known = self._levels.all()
        for each in changes:
            self._check(each, known)
        if is_trial:
            return
        for each in changes:
            if each.config_operation == DELETE:
                self._levels.unset(each.name)
            else:
                self._levels.set(each.name, each.value or "")
            logger.warning("the level of logger %s is %s now", each.name, self._level_of(each.name))

    def _level_of(self, name: str) -> str:
        return self._levels.all()[name]

    def _check_broker(self, broker: str) -> None:
        if broker != str(self._broker_id):
            raise ApiError(
                Error.INVALID_REQUEST, f"this is broker {self._broker_id}, not broker {broker!r}"
            )

    def _check(self, change: SettingChange, known: dict[str, str]) -> None:
        name, operation = change.name, change.config_operation
        if operation not in (SET, DELETE):
            raise ApiError(Error.INVALID_REQUEST, f"{name}: a level is set or removed, not a list")
        if name not in known:
            raise ApiError(Error.INVALID_CONFIG, f"there is no logger {name}")
        if operation == DELETE and name == LogLevels.ROOT:
            raise ApiError(Error.INVALID_REQUEST, f"the logger {name} must have a level")
        if operation == SET and change.value not in LogLevels.NAMES:
            levels = ", ".join(LogLevels.NAMES)
            raise ApiError(
                Error.INVALID_CONFIG, f"{name} is {change.value!r}, and must be one of {levels}"
            )


# What is stored after a change


def _replaced(asked: Asked, resource: Resource) -> Plan:
    assert isinstance(asked, ReplacedResource)
    _check_given(asked.configs, lambda _: True)
    wanted = {each.name: each.value or "" for each in asked.configs}
    return lambda _: _checked(wanted, resource)


def _changed(asked: Asked, resource: Resource) -> Plan:
    assert isinstance(asked, ChangedResource)
    _check_changes(asked)
    return partial(_after, asked.configs, resource)


def _check_changes(asked: ChangedResource) -> None:
    _check_given(asked.configs, lambda each: each.config_operation != DELETE)


def _after(changes: Iterable[SettingChange], resource: Resource, before: Overrides) -> Overrides:
    lists = _lists(resource, before)
    after = dict(before)
    for change in changes:
        value = _value_after(change, lists)
        if value is None:
            after.pop(change.name, None)
        else:
            after[change.name] = value
    # A stored setting that is invalid must not prevent changes to others.
    changed = {change.name for change in changes}
    left_out = before.keys() - changed - resource.usable(before).keys()
    _checked({name: text for name, text in after.items() if name not in left_out}, resource)
    return after


def _lists(resource: Resource, before: Overrides) -> dict[str, list[str]]:
    """The present values of list settings, to which APPEND and SUBTRACT apply."""
    texts = {
        each.name: before.get(each.name) or each.text or ""
        for each in resource.beneath()
        if each.row.shape.kind is Kind.LIST
    }
    return {
        name: [item.strip() for item in text.split(",") if item.strip()]
        for name, text in texts.items()
    }


def _checked(overrides: Overrides, resource: Resource) -> Overrides:
    resource.check(overrides)
    return overrides


def _check_given(
    settings: Sequence[ReplacingSetting] | Sequence[SettingChange],
    needs_value: Callable[..., bool],
) -> None:
    """ApiError INVALID_REQUEST for a setting that is named twice, or has no value."""
    counts = Counter(each.name for each in settings)
    for each in settings:
        if counts[each.name] > 1:
            raise ApiError(Error.INVALID_REQUEST, f"the request names {each.name} twice")
        if each.value is None and needs_value(each):
            raise ApiError(Error.INVALID_REQUEST, f"{each.name} has no value")


def _value_after(change: SettingChange, lists: dict[str, list[str]]) -> str | None:
    """The value after the change (pure); None if the setting is no longer set on the resource."""
    operation, value = change.config_operation, change.value or ""
    if operation == DELETE:
        return None
    if operation == SET:
        return value
    if operation not in (APPEND, SUBTRACT):
        raise ApiError(Error.INVALID_REQUEST, f"{change.name}: there is no operation {operation}")
    items = lists.get(change.name)
    if items is None:
        raise ApiError(Error.INVALID_CONFIG, f"{change.name} is not a list")
    given = list(dict.fromkeys(item.strip() for item in value.split(",")))
    if operation == APPEND:
        return ",".join([*items, *(item for item in given if item not in items)])
    return ",".join(item for item in items if item not in given)


# What is answered


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
