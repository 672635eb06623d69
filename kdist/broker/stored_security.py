"""ACLs as stored in ZooKeeper: read, changed, followed.

A change is one transaction of the pattern's ACLs, if they are still those that were read, and of
the notification that has every broker re-read them. So no change of two made at once is lost
(KAFKA-3328), a missing znode is created and not set (KAFKA-7255), and none is changed unseen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from kdist.broker.change_follower import ChangeFollower
from kdist.broker.membership import make_paths
from kdist.errors import ApiError, Error
from kdist.runtime.clock import Clock
from kdist.security.acls import Acl, AclTable, Pattern, PatternType
from kdist.zk import znodes
from kdist.zk.acl_values import AclChange, ExtendedAclChange, StoredAclEntries
from kdist.zk.client import Create, Delete, Operation, Set, Znode, ZooKeeper
from kdist.zk.errors import CorruptZnode, MultiFailed, NoNode, TooLarge
from kdist.zk.znodes import ZnodeRow

logger = logging.getLogger(__name__)

Acls = frozenset[Acl]
Plan = Callable[[Acls], Acls]

_READS_AT_ONCE = 200


class Store(NamedTuple):
    """Where the ACLs of one kind of patterns are."""

    types: ZnodeRow[None]
    acls: ZnodeRow[StoredAclEntries]
    changes: ZnodeRow[None]
    notification: Callable[[Pattern], Create]
    changed: Callable[[str, bytes], AclChange | ExtendedAclChange]


_STORES = {
    PatternType.LITERAL: Store(
        znodes.ACL_TYPE,
        znodes.ACLS,
        znodes.ACL_CHANGES,
        lambda pattern: Create(
            znodes.ACL_CHANGE.path(), AclChange(pattern).encode(), sequential=True
        ),
        znodes.ACL_CHANGE.decode,
    ),
    PatternType.PREFIXED: Store(
        znodes.PREFIXED_ACL_TYPE,
        znodes.PREFIXED_ACLS,
        znodes.EXTENDED_ACL_CHANGES,
        lambda pattern: Create(
            znodes.EXTENDED_ACL_CHANGE.path(), ExtendedAclChange(pattern).encode(), sequential=True
        ),
        znodes.EXTENDED_ACL_CHANGE.decode,
    ),
}


def store_of(pattern: Pattern) -> Store:
    """Where a pattern's ACLs are."""
    return _STORES[pattern.kind]


class StoredAcls:
    """Has `table` follow what is stored. Owner: the broker.

    While ZooKeeper is away, the ACLs that were read last stay in force.
    """

    def __init__(self, zk: ZooKeeper, clock: Clock, table: AclTable) -> None:
        self.zk = zk
        self.table = table
        self.on_change: list[Callable[[], None]] = []  # called when decisions may be others
        self._followers = [_AclFollower(zk, clock, kind, self) for kind in _STORES]

    async def load_all(self) -> None:
        await make_paths(self.zk, znodes.ACL_PATHS)
        for follower in self._followers:
            await follower.load_all()

    def watch(self) -> None:
        """Have all changes since `load_all` applied, and those to come."""
        for follower in self._followers:
            follower.watch()

    def stop(self) -> None:
        for follower in self._followers:
            follower.stop()

    @property
    def is_current(self) -> bool:
        """Whether no change can have been missed."""
        return all(follower.is_current for follower in self._followers)

    async def change(self, pattern: Pattern, plan: Plan) -> tuple[Acls, Acls]:
        """As `change_acls`; the change is in force on this broker when this returns."""
        changed = await change_acls(self.zk, pattern, plan)
        await self.reload((pattern,))
        return changed

    async def reload(self, patterns: Iterable[Pattern]) -> None:
        """Re-read and apply the ACLs of these patterns."""
        for some in in_batches(patterns):
            self._apply(await read_acls(self.zk, some))

    async def reload_kind(self, kind: PatternType) -> None:
        """Re-read and apply those of all patterns of this kind, and of those that had some."""
        there = await list_patterns(self.zk, kind)
        await self.reload({*there, *(each for each in self.table.patterns() if each.kind is kind)})

    def _apply(self, found: Mapping[Pattern, Acls | None]) -> None:
        before = self.table.version
        for pattern, acls in found.items():
            self.table.set(pattern, acls)
        if self.table.version != before:
            for tell in self.on_change:
                tell()


class _AclFollower(ChangeFollower):
    """Of one kind of patterns."""

    noun = "ACLs"
    at_once = _READS_AT_ONCE

    def __init__(self, zk: ZooKeeper, clock: Clock, kind: PatternType, acls: StoredAcls) -> None:
        super().__init__(zk, clock, _STORES[kind].changes.path())
        self._kind = kind
        self._acls = acls
        self._noted: set[Pattern] = set()

    async def _load_all(self) -> None:
        await self._acls.reload_kind(self._kind)

    async def _reload_all(self) -> None:
        await self._acls.reload_kind(self._kind)

    async def _reload(self, path: str, data: bytes) -> None:
        pattern = _STORES[self._kind].changed(path, data).pattern
        if pattern.type in znodes.ACL_TYPES and pattern.kind is self._kind:
            self._noted.add(pattern)

    async def _reload_noted(self) -> None:
        noted, self._noted = self._noted, set()
        await self._acls.reload(noted)


# For whoever has no broker


async def list_patterns(zk: ZooKeeper, kind: PatternType) -> list[Pattern]:
    """The patterns of this kind that have ACLs."""
    types = _STORES[kind].types
    return [
        Pattern(each, name, kind)
        for each in znodes.ACL_TYPES
        for name in await _children(zk, types.path(each.text))
    ]


def in_batches(patterns: Iterable[Pattern]) -> Iterator[list[Pattern]]:
    """As many as `read_acls` reads in one request."""
    waiting = iter(patterns)
    while some := list(islice(waiting, _READS_AT_ONCE)):
        yield some


async def read_acls(zk: ZooKeeper, patterns: Sequence[Pattern]) -> dict[Pattern, Acls | None]:
    """The ACLs of each; none if it has no znode, None if they cannot be read, which is logged."""
    found: dict[Pattern, Acls | None] = {}
    paths = [_path(pattern) for pattern in patterns]
    for pattern, path, znode in zip(patterns, paths, await zk.get_many(paths), strict=True):
        try:
            found[pattern] = _decoded(path, znode)
        except CorruptZnode as error:
            logger.error("closed to all but super users: %s", error)
            found[pattern] = None
    return found


async def change_acls(zk: ZooKeeper, pattern: Pattern, plan: Plan) -> tuple[Acls, Acls]:
    """Store the ACLs that `plan` makes of the present ones; returns these and what it made.

    `plan` is called again if somebody else changed them meanwhile. Raises ApiError
    UNKNOWN_SERVER_ERROR if the present ones cannot be read, or have words that are not known and
    would be lost; INVALID_REQUEST if they are too many.
    """
    while True:
        path = _path(pattern)
        try:
            znode = await zk.get(path)
        except NoNode:
            znode = None
        try:
            before = _decoded(path, znode)
        except CorruptZnode as error:
            raise ApiError(Error.UNKNOWN_SERVER_ERROR, f"{error}: mend or delete it") from error
        after = plan(before)
        if not all(acl.operation and acl.permission for acl in after):
            detail = f"{path}: has an entry that this release cannot write, so it is left as it is"
            raise ApiError(Error.UNKNOWN_SERVER_ERROR, detail)
        if after == before or await _is_written(zk, pattern, znode, after):
            return before, after


async def _is_written(zk: ZooKeeper, pattern: Pattern, read: Znode | None, acls: Acls) -> bool:
    """Whether nobody else changed them since they were read."""
    write = _write(_path(pattern), read, StoredAclEntries(acls).encode() if acls else b"")
    try:
        await zk.multi([write, store_of(pattern).notification(pattern)])
    except MultiFailed as failure:
        has_no_place = read is None and isinstance(failure.error, NoNode)
        if failure.index != 0 or has_no_place:
            raise  # not a concurrent change
        return False
    except TooLarge as error:
        detail = f"{len(acls)} ACLs of one pattern are more than ZooKeeper takes: {error}"
        raise ApiError(Error.INVALID_REQUEST, detail) from error
    return True


def _write(path: str, read: Znode | None, data: bytes) -> Operation:
    if read is None:
        return Create(path, data)
    version = read.stat.version
    return Set(path, data, version) if data else Delete(path, version)


def _path(pattern: Pattern) -> str:
    return store_of(pattern).acls.path(pattern.type.text, pattern.name)


def _decoded(path: str, znode: Znode | None) -> Acls:
    return frozenset() if znode is None else StoredAclEntries.decode(path, znode.data).acls


async def _children(zk: ZooKeeper, path: str) -> list[str]:
    try:
        return await zk.children(path)
    except NoNode:
        return []
