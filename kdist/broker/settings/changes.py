"""Follows changes of settings of topics and clients, as `/config/changes` tells of them.

To change settings is to write the znode of their owner and create a notification, which only names
the owner whose settings to re-read. For each new notification the oldest ones are checked too, and
removed if they are past their retention. A broker that was away for longer comes back with a new
session, and re-reads everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import unquote

from kdist.runtime.clock import Clock
from kdist.runtime.tasks import raise_bug
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.errors import CorruptZnode, NoNode, ZooKeeperError
from kdist.zk.watching import ChildrenWatcher

logger = logging.getLogger(__name__)

_KEPT_MS = 15 * 60_000  # retention of notifications, for brokers that are slow to read them
_RETRY_MS = 5_000  # after a failed read; after a lost connection, the watcher reports anyway


class Follower(Protocol):
    """Keeps the settings of one kind of owner. Its reads may raise `ZooKeeperError`."""

    async def load_all(self) -> None:
        """Read all settings that there are, for the first time."""
        ...

    async def reload(self, *names: str) -> None:
        """Re-read and apply the settings of these owners; the names are as in the notification."""
        ...

    async def reload_all(self) -> None:
        """Re-read and apply everything."""
        ...


class SettingsChanges:
    """Owner: the broker."""

    def __init__(self, zk: ZooKeeper, clock: Clock, followers: Mapping[str, Follower]) -> None:
        """`followers`, by the kind of their owners: the znode's name below `/config`."""
        self._zk = zk
        self._clock = clock
        self._followers = followers
        self._seen: set[str] = set()
        self._told_in = 0  # the session in which the settings were last read completely
        self._watcher: ChildrenWatcher | None = None
        self._looking: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None

    async def load_all(self) -> None:
        """Have all settings read. `watch` tells of all changes from here."""
        self._told_in = self._zk.session_id
        self._seen.update(await self._zk.children(znodes.SETTINGS_CHANGES.path()))
        for follower in self._followers.values():
            await follower.load_all()

    def watch(self) -> None:
        """Have all changes since `load_all` applied, and those to come."""
        self._watcher = ChildrenWatcher(self._zk, znodes.SETTINGS_CHANGES.path(), self._hear)

    def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        if self._looking is not None:
            self._looking.cancel()
        if self._again is not None:
            self._again.cancel()

    def _hear(self, names: list[str] | None) -> None:
        told = names or []
        new = [name for name in told if name not in self._seen]
        self._seen = set(told)
        is_elsewhere = self._told_in != self._zk.session_id
        self._told_in = self._zk.session_id
        if new or is_elsewhere:
            oldest = told[: len(new) + 1]
            names = list(dict.fromkeys([*oldest, *new]))
            self._looking = asyncio.ensure_future(
                self._catch_up(names, self._looking, is_elsewhere)
            )
            self._looking.add_done_callback(raise_bug)

    async def _catch_up(
        self, names: list[str], before: asyncio.Task[None] | None, is_elsewhere: bool
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            for follower in self._followers.values() if is_elsewhere else ():
                await follower.reload_all()
        except ZooKeeperError as error:
            self._told_in = 0
            self._retry_soon(error)
        for name in names:
            try:
                await self._read_notification(f"{znodes.SETTINGS_CHANGES.path()}/{name}")
            except ZooKeeperError as error:
                self._seen.discard(name)
                self._retry_soon(error)

    def _retry_soon(self, error: ZooKeeperError) -> None:
        """Have the watcher report again; what could not be read then counts as new."""
        logger.warning("could not read changed settings, trying again: %s", error)
        assert self._watcher is not None, "notifications come from it"
        loop = asyncio.get_running_loop()
        if self._again is not None:
            self._again.cancel()
        self._again = loop.call_later(_RETRY_MS / 1000, self._watcher.report_again)

    async def _read_notification(self, path: str) -> None:
        try:
            data, stat = await self._zk.get(path)
        except NoNode:
            return  # removed after its retention
        try:
            kind, _, name = znodes.SETTINGS_CHANGE.decode(path, data).entity_path.partition("/")
        except CorruptZnode as error:
            logger.warning("ignored a notification of changed settings: %s", error)
        else:
            if kind in self._followers and unquote(name) not in znodes.IMPOSSIBLE:
                await self._followers[kind].reload(name)
        if self._clock.now_ms() - stat.created_ms > _KEPT_MS:
            await self._remove(path)

    async def _remove(self, path: str) -> None:
        try:
            await self._zk.delete(path)
        except NoNode:
            pass  # another broker did
