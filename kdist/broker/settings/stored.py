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
from itertools import chain
from typing import NamedTuple, Protocol
from urllib.parse import unquote
from weakref import WeakValueDictionary

from kdist.broker.change_follower import ChangeFollower
from kdist.errors import ApiError, Error
from kdist.runtime.clock import Clock
from kdist.zk import znodes
from kdist.zk.client import Check, Create, Set, Znode, ZooKeeper
from kdist.zk.errors import CorruptZnode, MultiFailed, NodeExists, NoNode, ZooKeeperError
from kdist.zk.values import EntitySettings, SettingsChange
from kdist.zk.znodes import ZnodeRow

logger = logging.getLogger(__name__)

Overrides = Mapping[str, str]

_READS_AT_ONCE = 200
_NOT_THERE = -1  # the version of a znode that does not exist


class Owner(NamedTuple):
    """Whose settings: a topic's name, a broker's id, a user's and a client's name.

    A name may be `<default>`, for all that have none of their own.
    """

    row: ZnodeRow[EntitySettings]
    names: tuple[str, ...]

    @property
    def path(self) -> str:
        """The znode of its settings."""
        return self.row.path(*self.names)


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
        checks = [Check(znodes.TOPIC.path(*owner.names))] if is_topic else []
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
                    Error.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {owner.names[0]}"
                ) from failure
            has_no_place = version == _NOT_THERE and isinstance(failure.error, NoNode)
            if has_no_place and owner.row is znodes.USER_CLIENT_SETTINGS:
                await self._make_place(path.rpartition("/")[0])
                return False
            if failure.index != len(checks) or has_no_place:
                raise  # not a concurrent change of these settings
            return False
        return True

    async def _make_place(self, path: str) -> None:
        """For the first quotas of one of a user's clients."""
        try:
            await self._zk.create(path, make_parents=True)
        except NodeExists:
            pass  # another broker was faster


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


class SettingsChanges(ChangeFollower):
    """Follows changes of topics' and clients' settings."""

    noun = "settings"

    def __init__(
        self, zk: ZooKeeper, clock: Clock, followers: Mapping[str, Sequence[Follower]]
    ) -> None:
        """`followers`, by the kind of their owners: the znode's name below `/config`."""
        super().__init__(zk, clock, znodes.SETTINGS_CHANGES.path())
        self._followers = followers

    async def _load_all(self) -> None:
        for follower in chain.from_iterable(self._followers.values()):
            await follower.load_all()

    async def _reload_all(self) -> None:
        for follower in chain.from_iterable(self._followers.values()):
            await follower.reload_all()

    async def _reload(self, path: str, data: bytes) -> None:
        kind, _, name = znodes.SETTINGS_CHANGE.decode(path, data).entity_path.partition("/")
        if unquote(name) not in znodes.IMPOSSIBLE:
            for follower in self._followers.get(kind, ()):
                await follower.reload(name)


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
