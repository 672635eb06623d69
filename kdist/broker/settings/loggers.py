"""The levels of this broker's loggers, described and changed like settings (KIP-412).

They last until the process ends. Names and levels are checked before any is changed. Sources:
Kafka's `ConfigHelper` and `RuntimeLoggerManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kdist.errors import ApiError, Error
from kdist.protocol.describe_configs import DescribedSetting
from kdist.protocol.incremental_alter_configs import DELETE, SET, SettingChange
from kdist.runtime.diagnostics import LogLevels

logger = logging.getLogger(__name__)

_SOURCE = 6  # DescribeConfigs' `ConfigSource` of a logger's level


class Loggers:
    """Owner: the broker."""

    def __init__(self, broker_id: int, levels: LogLevels) -> None:
        self._broker_id = broker_id
        self._levels = levels

    def describe(self, broker: str) -> list[DescribedSetting]:
        """Each logger with its level; `broker` must be this one. ApiError INVALID_REQUEST."""
        self._check_broker(broker)
        return [
            DescribedSetting(
                name=name, value=level, read_only=False, config_source=_SOURCE, is_sensitive=False
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
