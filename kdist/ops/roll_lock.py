"""The locks (znodes) of whatever stops brokers or ZooKeeper servers, and of moves of partitions.

Rolls and disk replacements take one lock, so that no two of them meet. Its holder is a run, not a
person: two runs of one person are two. It is not ephemeral, as a run consists of many commands over
hours, but it has a lease, which the run renews at each step. A run that died keeps the lock until
the lease ends; then anyone may take it. Before that, only who gives the same run id resumes it.
Clocks of hosts are compared, which chrony keeps within a second.

Whoever carries out a plan of moves holds another lock, and begins only while nobody has the first.
A roll that begins later is not refused: moves end by themselves, and the gate waits for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import NamedTuple

from kdist.errors import KdistError, UserError
from kdist.runtime.clock import Clock
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.errors import BadVersion, NodeExists, NoNode
from kdist.zk.values import LockHolder

_MOVES_LEASE_MS = 60_000
_TRIES = 5  # against others who take and release it at the same moment


class LockHeld(UserError):
    """Another run holds the lock."""


class Taken(NamedTuple):
    """The lock as it is held now, and whether this run held it before."""

    holder: LockHolder
    is_new: bool


async def lock_holder(zookeeper: ZooKeeper, name: str = znodes.ROLL_LOCK) -> LockHolder | None:
    """The lock's holder, even if its lease has ended; None if it is free."""
    return await znodes.LOCK.read(zookeeper, name)


async def present_holder(zookeeper: ZooKeeper, clock: Clock, name: str) -> LockHolder | None:
    """The lock's holder; None if it is free, or the lease has ended."""
    holder = await lock_holder(zookeeper, name)
    return None if holder is None or _has_ended(holder, clock.now_ms()) else holder


async def take_lock(
    zookeeper: ZooKeeper,
    owner: str,
    run: str,
    lease_ms: int,
    clock: Clock,
    name: str = znodes.ROLL_LOCK,
) -> Taken:
    """Take the lock, or renew the run's lease; it keeps the time when the run took it first.

    `LockHeld` if another run's lease has not ended.
    """
    path = znodes.LOCK.path(name)
    for _ in range(_TRIES):
        now_ms = clock.now_ms()
        wanted = LockHolder(owner, now_ms, run, now_ms + lease_ms)
        try:
            found = await zookeeper.get(path)
        except NoNode:
            try:
                await zookeeper.create(path, znodes.LOCK.encode(wanted), make_parents=True)
            except NodeExists:
                continue
            return Taken(wanted, is_new=True)
        holder = znodes.LOCK.decode(path, found.data)
        if holder.run == run:
            wanted = wanted._replace(timestamp_ms=holder.timestamp_ms)
        elif not _has_ended(holder, now_ms):
            raise LockHeld(_refusal(holder, now_ms, name))
        try:
            await zookeeper.set(path, znodes.LOCK.encode(wanted), found.stat.version)
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


async def release_lock(
    zookeeper: ZooKeeper, run: str, *, forced: bool = False, name: str = znodes.ROLL_LOCK
) -> bool:
    """Release the lock; False if it is free or, unless `forced`, another run's."""
    path = znodes.LOCK.path(name)
    try:
        found = await zookeeper.get(path)
        if not forced and znodes.LOCK.decode(path, found.data).run != run:
            return False
        await zookeeper.delete(path, found.stat.version)
    except (NoNode, BadVersion):  # somebody took it over
        return False
    return True


@asynccontextmanager
async def moves_announced(
    connect: Callable[[], AbstractAsyncContextManager[ZooKeeper]],
    owner: Callable[[], str],
    run: str,
    clock: Clock,
    *,
    beside_roll: bool = False,
) -> AsyncIterator[None]:
    """Hold the lock of moves for the block's time; `owner` says for people how far they are.

    `LockHeld` while a run holds the lock of rolls, unless `beside_roll`, or another plan is carried
    out. Each renewal has a session of its own: one that fails is made up for by the next.
    """

    async def take() -> None:
        async with connect() as zookeeper:
            await take_lock(zookeeper, owner(), run, _MOVES_LEASE_MS, clock, znodes.MOVES_LOCK)

    async def release() -> None:
        async with connect() as zookeeper:
            await release_lock(zookeeper, run, name=znodes.MOVES_LOCK)

    async def renew() -> None:
        while True:
            await asyncio.sleep(_MOVES_LEASE_MS / 3000)
            with suppress(KdistError):  # the moves go on in any case
                await take()

    await take()
    try:
        # In this order: of a roll and moves that begin at once, one at least sees the other.
        async with connect() as zookeeper:
            roll = await present_holder(zookeeper, clock, znodes.ROLL_LOCK)
        if roll is not None and not beside_roll:
            held = _refusal(roll, clock.now_ms(), znodes.ROLL_LOCK)
            raise LockHeld(f"{held}; moves wait for its end, unless you give --beside-roll")
        renewing = asyncio.ensure_future(renew())
        try:
            yield
        finally:
            renewing.cancel()
    finally:
        with suppress(KdistError):  # the lease ends by itself
            await release()


def _has_ended(holder: LockHolder, now_ms: int) -> bool:
    return holder.until_ms is not None and holder.until_ms < now_ms


def _refusal(holder: LockHolder, now_ms: int, name: str) -> str:
    which = "the lock" if name == znodes.ROLL_LOCK else f"the lock of {name}"
    who = f"{holder.holder!r} holds {which}"
    if holder.until_ms is None:
        return f"{who}, without a lease"
    left_s = (holder.until_ms - now_ms) // 1000
    return f"{who} by run {holder.run}, whose lease ends in {left_s} s unless that run renews it"
