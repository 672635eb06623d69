"""Topics' own settings as they stand in ZooKeeper: read afresh, and changed for all brokers.

A change is one transaction: it checks that the topic exists and that nobody else changed its
settings since they were read, writes them, and leaves a notification below `/config/changes`, from
which every broker learns where to look (`topic_settings.py`). The one that makes the change looks
before it says that it is made: what its peer asks next finds it in force there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from weakref import WeakValueDictionary

from kdist.broker.metadata_cache import MetadataCache
from kdist.errors import ApiError, Error
from kdist.model import topic_name_fault
from kdist.zk import znodes
from kdist.zk.client import Check, Create, Set, ZooKeeper
from kdist.zk.cluster_values import EntitySettings, SettingsChange
from kdist.zk.errors import CorruptZnode, MultiFailed, NoNode, ZooKeeperError

logger = logging.getLogger(__name__)

Overrides = Mapping[str, str]

_NOT_THERE = -1  # the version of a znode that does not exist


class StoredSettings:
    """Owner: the broker. ApiError REQUEST_TIMED_OUT while ZooKeeper does not answer."""

    def __init__(
        self, zk: ZooKeeper, cache: MetadataCache, look_at: Callable[[str], Awaitable[None]]
    ) -> None:
        """`look_at` has this broker go by what a topic's settings are now."""
        self._zk = zk
        self._cache = cache
        self._look_at = look_at
        # A topic's changes are made in the order they were asked for here; a lock lives while
        # somebody holds it or waits for it.
        self._in_order: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def check_known(self, topic: str) -> None:
        """ApiError INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION."""
        fault = topic_name_fault(topic)
        if fault is not None:
            raise ApiError(Error.INVALID_TOPIC_EXCEPTION, f"the topic's name {fault}")
        if topic not in self._cache.topics:
            raise ApiError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic}")

    async def read(self, topic: str) -> Overrides:
        """What the topic has of its own."""
        try:
            return (await self._read(topic))[0]
        except ZooKeeperError as failure:
            raise _unanswered(failure) from failure

    async def change(self, topic: str, plan: Callable[[Overrides], Overrides]) -> None:
        """Make the settings what `plan` makes of them. It is called again if somebody was faster,
        and may raise the ApiError for which nothing is changed.
        """
        in_order = self._in_order.setdefault(topic, asyncio.Lock())
        try:
            async with in_order:
                while not await self._try_change(topic, plan):
                    pass
                await self._look_at(topic)
        except ZooKeeperError as failure:
            raise _unanswered(failure) from failure

    async def _read(self, topic: str) -> tuple[Overrides, int]:
        path = znodes.TOPIC_SETTINGS.path(topic)
        try:
            data, stat = await self._zk.get(path)
        except NoNode:
            return {}, _NOT_THERE
        try:
            return znodes.TOPIC_SETTINGS.decode(path, data).settings, stat.version
        except CorruptZnode as error:  # the topic goes by the broker's defaults
            logger.warning("%s", error)
            return {}, stat.version

    async def _try_change(self, topic: str, plan: Callable[[Overrides], Overrides]) -> bool:
        """Whether it is done; False if somebody else changed the settings meanwhile."""
        before, version = await self._read(topic)
        after = plan(before)
        if after == before:
            return True
        path = znodes.TOPIC_SETTINGS.path(topic)
        encoded = znodes.TOPIC_SETTINGS.encode(EntitySettings(after))
        entity = path.removeprefix("/config/")
        change = znodes.SETTINGS_CHANGE.encode(SettingsChange(entity))
        try:
            await self._zk.multi(
                [
                    Check(znodes.TOPIC.path(topic)),
                    Create(path, encoded) if version == _NOT_THERE else Set(path, encoded, version),
                    Create(znodes.SETTINGS_CHANGE.path(), change, sequential=True),
                ]
            )
        except MultiFailed as failure:
            if failure.index == 0:
                raise ApiError(
                    Error.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic}"
                ) from failure
            if failure.index != 1:
                raise  # it is not the topic's settings that are others now
            return False
        return True


def _unanswered(failure: ZooKeeperError) -> ApiError:
    logger.warning("settings are not reached: %s", failure)
    return ApiError(Error.REQUEST_TIMED_OUT, f"ZooKeeper does not answer: {failure}")
