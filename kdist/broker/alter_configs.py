"""AlterConfigs and IncrementalAlterConfigs (keys 33, 44): topics' own settings are changed.

The one gives a topic all the settings it is to have, the other changes those that it names; what
comes out is checked as a whole, and INVALID_CONFIG says every fault there is. Resources succeed and
fail one by one, each of them as a whole. Any broker may be asked: it writes to ZooKeeper, where all
of them look. A broker's own settings are its file's and cannot be changed from here.

Source: KIP-133, KIP-339, Kafka's `ZkAdminManager` and `ConfigAdminManager`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from kdist.broker.describe_configs import unknown_type
from kdist.broker.stored_settings import Overrides, StoredSettings
from kdist.config.broker_config import BrokerConfig
from kdist.config.faults import ConfigError
from kdist.config.kinds import Kind
from kdist.controller.loading import gather
from kdist.controller.topics import check_settings
from kdist.errors import ApiError, Error
from kdist.protocol.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlteredResourceResult,
    ReplacedResource,
    ReplacingSetting,
)
from kdist.protocol.describe_configs import BROKER, TOPIC
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
Resource = ReplacedResource | ChangedResource


class AlterConfigsHandler:
    """Owner: the broker. `told` is set once this broker knows the cluster's topics."""

    def __init__(
        self, stored: StoredSettings, config: Callable[[], BrokerConfig], told: asyncio.Event
    ) -> None:
        self._stored = stored
        self._config = config
        self._told = told

    async def replace(self, request: AlterConfigsRequest) -> AlterConfigsResponse:
        """AlterConfigs: one result for each resource."""
        results = await self._all(request.resources, request.validate_only, self._replaced)
        return AlterConfigsResponse(responses=results)

    async def change(
        self, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        """IncrementalAlterConfigs: one result for each resource."""
        results = await self._all(request.resources, request.validate_only, self._changed)
        return IncrementalAlterConfigsResponse(responses=results)

    async def _all(
        self,
        resources: Sequence[Resource],
        is_trial: bool,
        plan_for: Callable[[Resource], Plan],
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
        self,
        resource: Resource,
        is_trial: bool,
        is_named_once: bool,
        plan_for: Callable[[Resource], Plan],
    ) -> AlteredResourceResult:
        result = AlteredResourceResult(
            error_code=Error.NONE,
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        try:
            if not is_named_once:
                raise ApiError(Error.INVALID_REQUEST, "the request names the resource twice")
            self._check(resource)
            await self._carry_out(resource.resource_name, plan_for(resource), is_trial)
        except ApiError as error:
            result.error_code, result.error_message = error.error, error.detail
        return result

    def _check(self, resource: Resource) -> None:
        if resource.resource_type == BROKER:
            raise ApiError(
                Error.INVALID_REQUEST,
                "a broker's settings are those of its file, read when it starts",
            )
        if resource.resource_type != TOPIC:
            raise unknown_type(resource.resource_type)
        self._stored.check_known(resource.resource_name)

    async def _carry_out(self, topic: str, plan: Plan, is_trial: bool) -> None:
        if is_trial:
            plan(await self._stored.read(topic))
        else:
            await self._stored.change(topic, plan)

    # Plans

    def _replaced(self, resource: Resource) -> Plan:
        assert isinstance(resource, ReplacedResource)
        _check_given(resource.configs, lambda _: True)
        wanted = {each.name: each.value or "" for each in resource.configs}
        return lambda _: self._checked(wanted)

    def _changed(self, resource: Resource) -> Plan:
        assert isinstance(resource, ChangedResource)
        _check_given(resource.configs, lambda each: each.config_operation != DELETE)
        return partial(self._after, resource.configs)

    def _after(self, changes: Iterable[SettingChange], before: Overrides) -> Overrides:
        lists = self._lists(before)
        after = dict(before)
        for change in changes:
            value = _value_after(change, lists)
            if value is None:
                after.pop(change.name, None)
            else:
                after[change.name] = value
        return self._checked(after)

    def _lists(self, before: Overrides) -> dict[str, list[str]]:
        """The settings that are lists, as they are in force: what is appended to."""
        config = self._config()
        try:
            config.topic(before)
        except ConfigError:
            before = {}
        return {
            each.name: [item for item in (each.text or "").split(",") if item]
            for each in config.describe_topic(before)
            if each.row.shape.kind is Kind.LIST
        }

    def _checked(self, overrides: Overrides) -> Overrides:
        check_settings(overrides, self._config())
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
    """The value that the change leaves (pure); None: the setting is the topic's own no more."""
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
