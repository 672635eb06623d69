"""AlterConfigs and IncrementalAlterConfigs (keys 33, 44): dynamic settings of topics and brokers.

Levels of loggers are changed by IncrementalAlterConfigs alone (`loggers.py`).

AlterConfigs replaces all dynamic settings of a topic or broker, IncrementalAlterConfigs changes
only those that it names. The outcome is checked as a whole, and INVALID_CONFIG reports every fault.
Resources succeed or fail independently, each as a whole. The broker that is asked writes to
ZooKeeper, from which all brokers read; `resources.py` says which broker accepts which resource.

Source: KIP-133, KIP-226, KIP-339, Kafka's `ZkAdminManager` and `ConfigAdminManager`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from kdist.broker.settings.loggers import Loggers
from kdist.broker.settings.resources import Resource, Resources
from kdist.broker.settings.stored import Overrides, StoredSettings
from kdist.config.kinds import Kind
from kdist.controller.loading import gather
from kdist.errors import ApiError, Error
from kdist.protocol.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlteredResourceResult,
    ReplacedResource,
    ReplacingSetting,
)
from kdist.protocol.describe_configs import BROKER_LOGGER
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

Plan = Callable[[Overrides], Overrides]
Asked = ReplacedResource | ChangedResource
PlanFor = Callable[[Asked, Resource], Plan]


class AlterConfigsHandler:
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

    async def replace(self, request: AlterConfigsRequest) -> AlterConfigsResponse:
        """AlterConfigs: one result for each resource."""
        results = await self._all(request.resources, request.validate_only, _replaced)
        return AlterConfigsResponse(responses=results)

    async def change(
        self, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        """IncrementalAlterConfigs: one result for each resource."""
        results = await self._all(request.resources, request.validate_only, _changed)
        return IncrementalAlterConfigsResponse(responses=results)

    async def _all(
        self, resources: Sequence[Asked], is_trial: bool, plan_for: PlanFor
    ) -> list[AlteredResourceResult]:
        await self._told.wait()
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


# Plans


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
