"""Settings of topics, clients and brokers as stored in ZooKeeper: read, changed, followed.

A change is one transaction: it checks that the topic exists and that its settings are still those
that were read, writes the new ones, and creates a notification below `/config/changes`, which only
names the owner whose settings every broker is to re-read (brokers' own settings are watched
directly instead, `dynamic.py`). The broker that makes the change applies it before it answers, so
its client's next request finds the change in force.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol
from urllib.parse import unquote
from weakref import WeakValueDictionary

from kdist.errors import ApiError, Error
from kdist.runtime.clock import Clock
from kdist.runtime.tasks import raise_bug
from kdist.zk import znodes
from kdist.zk.client import Check, Create, Set, Znode, ZooKeeper
from kdist.zk.errors import CorruptZnode, MultiFailed, NoNode, ZooKeeperError
from kdist.zk.values import EntitySettings, SettingsChange
from kdist.zk.watching import ChildrenWatcher
from kdist.zk.znodes import ZnodeRow

logger = logging.getLogger(__name__)

Overrides = Mapping[str, str]

_READS_AT_ONCE = 200
_KEPT_MS = 15 * 60_000  # retention of notifications, for brokers that are slow to read them
_RETRY_MS = 5_000  # after a failed read; after a lost connection, the watcher reports anyway
_NOT_THERE = -1  # the version of a znode that does not exist


class Owner(NamedTuple):
    """Whose settings: a topic's name, a client's or a broker's id, or `<default>` for all."""

    row: ZnodeRow[EntitySettings]
    name: str

    @property
    def path(self) -> str:
        """The znode of its settings."""
        return self.row.path(self.name)


class StoredSettings:
    """Owner: the broker. ApiError REQUEST_TIMED_OUT while ZooKeeper does not answer."""

    def __init__(self, zk: ZooKeeper, reload: Callable[[Owner], Awaitable[None]]) -> None:
        """`reload` has this broker re-read and apply the owner's settings."""
        self._zk = zk
        self._reload = reload
        # One owner's changes are made in the order of the requests. A lock lives only while
        # somebody holds it or waits for it.
        self._in_order: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read(self, owner: Owner) -> Overrides:
        found = (await self.read_all([owner]))[owner]
        if isinstance(found, ApiError):
            raise found
        return found

    async def read_all(self, owners: Sequence[Owner]) -> dict[Owner, Overrides | ApiError]:
        """The settings stored for each, or the error; hundreds are read in one request."""
        found: dict[Owner, Overrides | ApiError] = {}
        for start in range(0, len(owners), _READS_AT_ONCE):
            some = owners[start : start + _READS_AT_ONCE]
            try:
                read = await self._zk.get_many([owner.path for owner in some])
            except ZooKeeperError as failure:
                found.update(dict.fromkeys(some, unanswered(failure)))
            else:
                for owner, znode in zip(some, read, strict=True):
                    found[owner] = decode_stored(owner.row, owner.path, znode)
        return found

    async def change(self, owner: Owner, plan: Callable[[Overrides], Overrides]) -> None:
        """Store the settings that `plan` makes of the present ones.

        `plan` is called again if somebody else changed them meanwhile. If it raises `ApiError`,
        nothing is changed.
        """
        in_order = self._in_order.setdefault(owner.path, asyncio.Lock())
        try:
            async with in_order:
                while not await self._try_change(owner, plan):
                    pass
                await self._reload(owner)
        except ZooKeeperError as failure:
            raise unanswered(failure) from failure

    async def _read(self, owner: Owner) -> tuple[Overrides, int]:
        try:
            znode = await self._zk.get(owner.path)
        except NoNode:
            return {}, _NOT_THERE
        return decode_stored(owner.row, owner.path, znode), znode.stat.version

    async def _try_change(self, owner: Owner, plan: Callable[[Overrides], Overrides]) -> bool:
        """Try once; False if somebody else changed the settings since they were read."""
        before, version = await self._read(owner)
        after = plan(before)
        if after == before:
            return True
        path = owner.path
        encoded = owner.row.encode(EntitySettings(after))
        entity = path.removeprefix("/config/")
        change = znodes.SETTINGS_CHANGE.encode(SettingsChange(entity))
        is_topic = owner.row is znodes.TOPIC_SETTINGS
        checks = [Check(znodes.TOPIC.path(owner.name))] if is_topic else []
        try:
            await self._zk.multi(
                [
                    *checks,
                    Create(path, encoded) if version == _NOT_THERE else Set(path, encoded, version),
                    Create(znodes.SETTINGS_CHANGE.path(), change, sequential=True),
                ]
            )
        except MultiFailed as failure:
            if failure.index < len(checks):
                raise ApiError(
                    Error.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {owner.name}"
                ) from failure
            has_no_place = version == _NOT_THERE and isinstance(failure.error, NoNode)
            if failure.index != len(checks) or has_no_place:
                raise  # not a concurrent change of these settings
            return False
        return True


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
    """Follows changes of topics' and clients' settings. Owner: the broker.

    For each new notification the oldest ones are checked too, and removed if they are past their
    retention. A broker that was away for longer comes back with a new session, and re-reads
    everything.
    """

    def __init__(self, zk: ZooKeeper, clock: Clock, followers: Mapping[str, Follower]) -> None:
        """`followers`, by the kind of their owners: the znode's name below `/config`."""
        self._zk = zk
        self._clock = clock
        self._followers = followers
        self._seen: set[str] = set()
        self._read_in = 0  # the session in which the settings were last read completely
        self._watcher: ChildrenWatcher | None = None
        self._looking: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None

    async def load_all(self) -> None:
        """Have all settings read. `watch` tells of all changes from here."""
        self._read_in = self._zk.session_id
        self._seen.update(await self._zk.children(znodes.SETTINGS_CHANGES.path()))
        for follower in self._followers.values():
            await follower.load_all()

    def watch(self) -> None:
        """Have all changes since `load_all` applied, and those to come."""
        self._watcher = ChildrenWatcher(self._zk, znodes.SETTINGS_CHANGES.path(), self._notified)

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
            self._read_in = 0
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


def decode_stored(
    row: ZnodeRow[EntitySettings], path: str, znode: Znode | None
) -> Mapping[str, str]:
    """The settings in a znode; none if there is no znode, or it is corrupt."""
    if znode is not None:
        try:
            return row.decode(path, znode.data).settings
        except CorruptZnode as error:  # the owner uses the layers below instead
            is_secret = row is znodes.USER_SETTINGS
            logger.warning("ignored stored settings: %s", path if is_secret else error)
    return {}


def unanswered(failure: ZooKeeperError) -> ApiError:
    """REQUEST_TIMED_OUT, for what ZooKeeper did not answer."""
    logger.warning("cannot read or write settings in ZooKeeper: %s", failure)
    return ApiError(Error.REQUEST_TIMED_OUT, f"ZooKeeper does not answer: {failure}")
