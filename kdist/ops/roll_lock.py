"""The lock of rolling restarts, held by one at a time: a znode with its owner's name.

It is not ephemeral, since a roll consists of many commands over hours. One that dies halfway leaves
the lock to whoever resumes it under the same name; anybody else gets `LockHeld`, with that name.
"""

from __future__ import annotations

from kdist.errors import UserError
from kdist.runtime.clock import Clock
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.cluster_values import LockHolder
from kdist.zk.errors import NodeExists

_NAME = "roll"
PATH = znodes.LOCK.path(_NAME)


class LockHeld(UserError):
    """Somebody else holds the lock."""


async def lock_holder(zookeeper: ZooKeeper) -> LockHolder | None:
    """The lock's holder, or None if it is free."""
    return await znodes.LOCK.read(zookeeper, _NAME)


async def take_lock(zookeeper: ZooKeeper, owner: str, clock: Clock) -> bool:
    """Take the lock; False if `owner` holds it already. `LockHeld` if somebody else does."""
    data = znodes.LOCK.encode(LockHolder(owner, clock.now_ms()))
    try:
        await zookeeper.create(PATH, data, make_parents=True)
    except NodeExists:
        _check_owner(await lock_holder(zookeeper), owner)
        return False
    return True


async def release_lock(zookeeper: ZooKeeper, owner: str, *, forced: bool = False) -> bool:
    """Release the lock; False if it is free. `LockHeld` if another's, unless `forced`."""
    holder = await lock_holder(zookeeper)
    if holder is None:
        return False
    if not forced:
        _check_owner(holder, owner)
    await zookeeper.delete(PATH)
    return True


def _check_owner(holder: LockHolder | None, owner: str) -> None:
    if holder is None:
        raise UserError("the lock was released just now: try again")
    if holder.holder != owner:
        raise LockHeld(f"{holder.holder!r} holds the lock, and not {owner!r}")
