"""The lock of whatever stops brokers or ZooKeeper servers: rolls, disk replacements (a znode).

One lock, so that no two of them meet. Its holder is a run, not a person: two runs of one person are
two. It is not ephemeral, as a run consists of many commands over hours, but it has a lease, which
the run renews at each step. A run that died keeps the lock until the lease ends; then anyone may
take it. Before that, only who gives the same run id resumes it. Clocks of hosts are compared, which
chrony keeps within a second.
"""

from __future__ import annotations

from typing import NamedTuple

from kdist.errors import UserError
from kdist.runtime.clock import Clock
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.cluster_values import LockHolder
from kdist.zk.errors import BadVersion, NodeExists, NoNode

PATH = znodes.LOCK.path(znodes.ROLL_LOCK)
_TRIES = 5  # against others who take and release it at the same moment


class LockHeld(UserError):
    """Another run holds the lock."""


class Taken(NamedTuple):
    """The lock as it is held now, and whether this run held it before."""

    holder: LockHolder
    is_new: bool


async def lock_holder(zookeeper: ZooKeeper) -> LockHolder | None:
    """The lock's holder, even if its lease has ended; None if it is free."""
    return await znodes.LOCK.read(zookeeper, znodes.ROLL_LOCK)


async def take_lock(
    zookeeper: ZooKeeper, owner: str, run: str, lease_ms: int, clock: Clock
) -> Taken:
    """Take the lock, or renew the run's lease; it keeps the time when the run took it first.

    `LockHeld` if another run's lease has not ended.
    """
    for _ in range(_TRIES):
        now_ms = clock.now_ms()
        wanted = LockHolder(owner, now_ms, run, now_ms + lease_ms)
        try:
            found = await zookeeper.get(PATH)
        except NoNode:
            try:
                await zookeeper.create(PATH, znodes.LOCK.encode(wanted), make_parents=True)
            except NodeExists:
                continue
            return Taken(wanted, is_new=True)
        holder = znodes.LOCK.decode(PATH, found.data)
        if holder.run == run:
            wanted = wanted._replace(timestamp_ms=holder.timestamp_ms)
        elif not _has_ended(holder, now_ms):
            raise LockHeld(_refusal(holder, now_ms))
        try:
            await zookeeper.set(PATH, znodes.LOCK.encode(wanted), found.stat.version)
        except (BadVersion, NoNode):
            continue
        return Taken(wanted, is_new=holder.run != run)
    raise UserError("the lock changes hands over and over: try again")


async def renew_lock(zookeeper: ZooKeeper, run: str, lease_ms: int, clock: Clock) -> None:
    """Renew the run's lease. `LockHeld` if the lock is free, or another run's, by now."""
    holder = await lock_holder(zookeeper)
    if holder is None or holder.run != run:
        raise LockHeld(f"run {run} has lost the lock")
    await take_lock(zookeeper, holder.holder, run, lease_ms, clock)


async def release_lock(zookeeper: ZooKeeper, run: str, *, forced: bool = False) -> bool:
    """Release the lock; False if it is free or, unless `forced`, another run's."""
    try:
        found = await zookeeper.get(PATH)
        if not forced and znodes.LOCK.decode(PATH, found.data).run != run:
            return False
        await zookeeper.delete(PATH, found.stat.version)
    except (NoNode, BadVersion):  # somebody took it over
        return False
    return True


def _has_ended(holder: LockHolder, now_ms: int) -> bool:
    return holder.until_ms is not None and holder.until_ms < now_ms


def _refusal(holder: LockHolder, now_ms: int) -> str:
    who = f"{holder.holder!r} holds the lock"
    if holder.until_ms is None:
        return f"{who}, without a lease"
    left_s = (holder.until_ms - now_ms) // 1000
    return f"{who} by run {holder.run}, whose lease ends in {left_s} s unless that run renews it"
