"""The lock that one roll holds at a time: a znode with its owner's name, for people to read.

It is not ephemeral: a roll is many commands over hours, and one that died in the middle leaves the
lock to whoever resumes it under the same name. `LockHeld` names the owner to anybody else.
"""

from __future__ import annotations

from kdist.errors import UserError
from kdist.runtime.clock import Clock
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.cluster_values import LockHolder
from kdist.zk.errors import NodeExists, NoNode

PATH = znodes.LOCK.path("roll")


class LockHeld(UserError):
    """The lock is another's."""


async def lock_holder(zookeeper: ZooKeeper) -> LockHolder | None:
    """Who holds the lock."""
    try:
        return znodes.LOCK.decode(PATH, (await zookeeper.get(PATH)).data)
    except NoNode:
        return None


async def take_lock(zookeeper: ZooKeeper, owner: str, clock: Clock) -> bool:
    """Take the lock; whether it was free, and not `owner`'s already. `LockHeld`: another's."""
    data = znodes.LOCK.encode(LockHolder(owner, clock.now_ms()))
    try:
        await zookeeper.create(PATH, data, make_parents=True)
    except NodeExists:
        _check_owner(await lock_holder(zookeeper), owner)
        return False
    return True


async def release_lock(zookeeper: ZooKeeper, owner: str, *, forced: bool = False) -> bool:
    """Give the lock back; whether there was one. `LockHeld`: another's, unless `forced`."""
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
