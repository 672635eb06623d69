"""Follows what changes in ZooKeeper by the notifications below one znode, of any kind.

A notification only names what every broker is to re-read. For each new one the oldest are checked
too, and removed if they are past their retention. A broker that was away for longer comes back with
a new session, and re-reads everything; so does one that takes long from reading it to watching, as
the recovery of its logs may.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping

from kdist.runtime.clock import Clock
from kdist.runtime.steps import parted
from kdist.runtime.tasks import raise_bug
from kdist.zk.client import SessionState, ZooKeeper
from kdist.zk.errors import CorruptZnode, NoNode, ZooKeeperError
from kdist.zk.watching import ChildrenWatcher

logger = logging.getLogger(__name__)

_KEPT_MS = 15 * 60_000  # retention of notifications, for brokers that are slow to read them
_STALE_NS = _KEPT_MS // 2 * 1_000_000  # of what was read before anything was watched
_RETRY_MS = 5_000  # after a failed read; after a lost connection, the watcher reports anyway


class ChangeFollower(ABC):
    """Owner: the broker. What reads in a subclass may raise `ZooKeeperError`: it is done again."""

    noun: str
    """What changes, as log lines say it."""
    at_once = 1
    """How many notifications are read together."""

    def __init__(self, zk: ZooKeeper, clock: Clock, path: str) -> None:
        """`path`: the parent of the notifications."""
        self._zk = zk
        self._clock = clock
        self._path = path
        self._seen: set[str] = set()
        self._read_in = 0  # the session in which everything was last read
        self._loaded_ns = 0
        self._is_behind = False  # since a read failed
        self._watcher: ChildrenWatcher | None = None
        self._looking: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None

    @abstractmethod
    async def _load_all(self) -> None:
        """Read everything, for the first time."""

    @abstractmethod
    async def _reload_all(self) -> None:
        """Re-read and apply everything."""

    @abstractmethod
    async def _reload(self, path: str, data: bytes) -> None:
        """Re-read and apply what a notification names; `CorruptZnode` if it names nothing."""

    async def _reload_noted(self) -> None:  # noqa: B027 - most note nothing
        """Re-read and apply what `_reload` has only noted of the notifications before."""

    @property
    def is_current(self) -> bool:
        """Whether all changes that this broker could have been told of have been applied."""
        is_connected = self._zk.state is SessionState.CONNECTED
        return is_connected and self._read_in == self._zk.session_id and not self._is_behind

    async def load_all(self) -> None:
        """Have everything read. `watch` tells of all changes from here."""
        self._read_in = self._zk.session_id
        self._loaded_ns = self._clock.monotonic_ns()
        self._seen.update(await self._zk.children(self._path))
        await self._load_all()

    def watch(self) -> None:
        """Have all changes since `load_all` applied, and those to come."""
        if self._clock.monotonic_ns() - self._loaded_ns > _STALE_NS:
            self._read_in = 0  # notifications may be gone already: re-read everything
        self._watcher = ChildrenWatcher(self._zk, self._path, self._notified)

    def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        if self._looking is not None:
            self._looking.cancel()
        if self._again is not None:
            self._again.cancel()

    def _notified(self, names: list[str] | None) -> None:
        there = names or []
        new = [name for name in there if name not in self._seen]
        self._seen = set(there)
        is_elsewhere = self._read_in != self._zk.session_id
        self._read_in = self._zk.session_id
        if new or is_elsewhere:
            oldest = there[: len(new) + 1]
            # Only what is new is applied: an order to disconnect holds once.
            is_new = dict.fromkeys(oldest, False) | dict.fromkeys(new, True)
            self._looking = asyncio.ensure_future(
                self._catch_up(is_new, self._looking, is_elsewhere)
            )
            self._looking.add_done_callback(raise_bug)

    async def _catch_up(
        self, names: Mapping[str, bool], before: asyncio.Task[None] | None, is_elsewhere: bool
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._is_behind = False
        try:
            if is_elsewhere:
                await self._reload_all()
        except ZooKeeperError as error:
            self._read_in = 0
            self._retry_soon(error)
        for some in parted(names, self.at_once):
            try:
                await self._read_notifications(
                    {f"{self._path}/{name}": names[name] for name in some}
                )
            except ZooKeeperError as error:
                self._seen.difference_update(name for name in some if names[name])
                self._retry_soon(error)

    def _retry_soon(self, error: ZooKeeperError) -> None:
        """Have the watcher report again; what could not be read then counts as new."""
        logger.warning("could not read changed %s, trying again: %s", self.noun, error)
        assert self._watcher is not None, "notifications come from it"
        self._is_behind = True
        loop = asyncio.get_running_loop()
        if self._again is not None:
            self._again.cancel()
        self._again = loop.call_later(_RETRY_MS / 1000, self._watcher.report_again)

    async def _read_notifications(self, is_new: Mapping[str, bool]) -> None:
        """Apply those that are new, and remove the old, by their paths."""
        found = zip(is_new, await self._zk.get_many(list(is_new)), strict=True)
        # Of the others the retention is over.
        there = [(path, znode) for path, znode in found if znode is not None]
        for path, znode in there:
            try:
                if is_new[path]:
                    await self._reload(path, znode.data)
            except CorruptZnode as error:
                logger.warning("ignored a notification of changed %s: %s", self.noun, error)
        await self._reload_noted()
        for path, znode in there:
            if self._clock.now_ms() - znode.stat.created_ms > _KEPT_MS:
                await self._remove(path)

    async def _remove(self, path: str) -> None:
        try:
            await self._zk.delete(path)
        except NoNode:
            pass  # another broker did
