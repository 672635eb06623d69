"""The ACLs of a tree that exists: where they are not as they should be, and setting them.

Nothing is created, and whatever is right is left: so it may be interrupted, and done again. A
znode that goes meanwhile needs no ACL. Source: Kafka's `ZkSecurityMigrator`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from kdist.zk import znodes
from kdist.zk.client import ZooKeeper, gather
from kdist.zk.errors import NoAuth, NoNode
from kdist.zk.znode_acls import (
    WORLD,
    AclEntry,
    Permission,
    ZnodeAcl,
    world_permissions,
)

_KAFKAS = ("delegation_token", "feature", "migration")  # which kdist does not write
ROOTS = (
    "/",
    *sorted(
        {f"/{row.template.split('/')[1]}" for row in znodes.ROWS} | {f"/{name}" for name in _KAFKAS}
    ),
)
"""What is looked at below the chroot, with all below it; of `/` the znode itself only."""

_BATCH = 500  # znodes at a time


class Found(NamedTuple):
    """A znode, and its ACL; None if this session may not read it."""

    path: str
    acl: ZnodeAcl | None
    wanted: ZnodeAcl

    @property
    def fault(self) -> str:
        """What is not as it should be; empty if nothing is."""
        if self.acl is None:
            return "these credentials may not read it"
        too_many = world_permissions(self.acl) & ~world_permissions(self.wanted)
        missing = world_permissions(self.wanted) & ~world_permissions(self.acl)
        if too_many:
            return f"anybody may {'read' if too_many == Permission.READ else 'change'} it"
        if missing:
            return f"not everybody may {'read' if missing == Permission.READ else 'change'} it"
        if self.wanted[0][:2] != WORLD and not any(map(_is_owner, self.acl)):
            return "nobody may change it"
        return ""

    @property
    def owners(self) -> list[str]:
        """The identities with rights of their own, without the hashes of their passwords."""
        return [
            f"{each.scheme}:{each.id.partition(':')[0] if each.scheme == 'digest' else each.id}"
            for each in self.acl or ()
            if each[:2] != WORLD
        ]


def _is_owner(entry: AclEntry) -> bool:
    return entry[:2] != WORLD and entry.permissions == Permission.ALL


async def survey(zk: ZooKeeper, wanted: Callable[[str], ZnodeAcl]) -> AsyncIterator[list[Found]]:
    """All znodes of kdist and Kafka, some at a time, parents first."""
    waiting = list(reversed(ROOTS))
    while waiting:
        batch = waiting[-_BATCH:]
        del waiting[-_BATCH:]
        looked = await gather(_look(zk, path, wanted(path)) for path in batch)
        yield [found for found, _ in filter(None, looked)]
        for found, names in filter(None, looked):
            if found.path != "/":
                waiting += [f"{found.path}/{name}" for name in names]


async def _look(zk: ZooKeeper, path: str, wanted: ZnodeAcl) -> tuple[Found, list[str]] | None:
    try:
        return Found(path, await zk.acl(path), wanted), await zk.children(path)
    except NoAuth:
        return Found(path, None, wanted), []
    except NoNode:
        return None


class Done(NamedTuple):
    """What was seen, what was set, and what ZooKeeper refused to set."""

    seen: int
    changed: int
    refused: list[str]
    owners: Counter[str]


async def secure(
    zk: ZooKeeper,
    wanted: Callable[[str], ZnodeAcl],
    report: Callable[[Found], None],
    progress: Callable[[int], None],
    *,
    is_dry: bool,
) -> Done:
    """Set the ACLs that are not as wanted, or only report them; `progress` gets counts."""
    seen = changed = 0
    refused: list[str] = []
    owners: Counter[str] = Counter()
    async for batch in survey(zk, wanted):
        faulty = [each for each in batch if each.fault]
        for each in faulty:
            report(each)
        if not is_dry:
            outcomes = await gather(_set(zk, each) for each in faulty)
            refused += [each.path for each, ok in zip(faulty, outcomes, strict=True) if not ok]
        seen, changed = seen + len(batch), changed + len(faulty)
        owners.update(owner for each in batch for owner in each.owners)
        progress(seen)
    return Done(seen, changed - len(refused), refused, owners)


async def _set(zk: ZooKeeper, found: Found) -> bool:
    try:
        await zk.set_acl(found.path, found.wanted)
    except NoAuth:
        return False
    except NoNode:
        pass  # gone meanwhile
    return True
