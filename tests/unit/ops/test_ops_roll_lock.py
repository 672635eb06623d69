"""The lock of whatever stops brokers: one run holds it, for as long as it renews its lease."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from kdist.ops.roll_lock import LockHeld, lock_holder, release_lock, renew_lock, take_lock
from kdist.runtime.clock import VirtualClock
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.cluster_values import LockHolder
from kdist.zk.memory import MemoryEnsemble

LEASE_MS = 60_000


def with_zookeeper(work: Callable[[ZooKeeper, VirtualClock], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = VirtualClock(now_ms=1_000)
        client = MemoryEnsemble(clock, random.Random(1)).client()
        await client.connect()
        try:
            await work(client, clock)
        finally:
            await client.close()

    asyncio.run(run())


def test_two_runs_of_one_person_are_two() -> None:
    async def work(keeper: ZooKeeper, clock: VirtualClock) -> None:
        await take_lock(keeper, "anna", "r1", LEASE_MS, clock)
        with pytest.raises(LockHeld, match=r"'anna' holds the lock by run r1, .* ends in 60 s"):
            await take_lock(keeper, "anna", "r2", LEASE_MS, clock)

    with_zookeeper(work)


def test_a_run_renews_its_lease_and_keeps_the_time_of_its_beginning() -> None:
    async def work(keeper: ZooKeeper, clock: VirtualClock) -> None:
        assert (await take_lock(keeper, "anna", "r1", LEASE_MS, clock)).is_new
        clock.advance_ms(50_000)
        taken = await take_lock(keeper, "anna", "r1", LEASE_MS, clock)
        assert not taken.is_new
        assert (taken.holder.timestamp_ms, taken.holder.until_ms) == (1_000, 111_000)
        assert await lock_holder(keeper) == taken.holder
        clock.advance_ms(50_000)
        with pytest.raises(LockHeld):
            await take_lock(keeper, "bert", "r2", LEASE_MS, clock)
        await renew_lock(keeper, "r1", LEASE_MS, clock)
        holder = await lock_holder(keeper)
        assert holder is not None
        assert holder.until_ms == 161_000

    with_zookeeper(work)


def test_the_lock_of_a_run_that_died_can_be_taken_once_its_lease_has_ended() -> None:
    async def work(keeper: ZooKeeper, clock: VirtualClock) -> None:
        await take_lock(keeper, "anna", "r1", LEASE_MS, clock)
        clock.advance_ms(LEASE_MS + 1)
        taken = await take_lock(keeper, "bert", "r2", LEASE_MS, clock)
        assert taken.is_new
        assert taken.holder.timestamp_ms == 1_000 + LEASE_MS + 1  # its own time, not r1's
        with pytest.raises(LockHeld, match="run r1 has lost the lock"):
            await renew_lock(keeper, "r1", LEASE_MS, clock)
        assert not await release_lock(keeper, "r1")
        holder = await lock_holder(keeper)
        assert holder is not None
        assert holder.run == "r2"

    with_zookeeper(work)


def test_a_lock_is_released_by_its_run_or_by_force() -> None:
    async def work(keeper: ZooKeeper, clock: VirtualClock) -> None:
        assert not await release_lock(keeper, "r1")
        for how in ({"run": "r1"}, {"run": "", "forced": True}):
            await take_lock(keeper, "anna", "r1", LEASE_MS, clock)
            assert await release_lock(keeper, **how)  # type: ignore[arg-type]
            assert await lock_holder(keeper) is None

    with_zookeeper(work)


def test_a_lock_of_an_older_release_has_no_lease_that_could_end() -> None:
    async def work(keeper: ZooKeeper, clock: VirtualClock) -> None:
        path = znodes.LOCK.path("roll")
        old = znodes.LOCK.encode(LockHolder("anna", 0))
        await keeper.create(path, old, make_parents=True)
        clock.advance_ms(10**12)
        with pytest.raises(LockHeld, match="'anna' holds the lock, without a lease"):
            await take_lock(keeper, "bert", "r2", LEASE_MS, clock)

    with_zookeeper(work)


def test_of_two_that_take_over_at_once_one_is_refused() -> None:
    async def work(keeper: ZooKeeper, clock: VirtualClock) -> None:
        await take_lock(keeper, "anna", "r1", LEASE_MS, clock)
        clock.advance_ms(LEASE_MS + 1)
        tries = [take_lock(keeper, run, run, LEASE_MS, clock) for run in ("r2", "r3")]
        done = await asyncio.gather(*tries, return_exceptions=True)
        assert sorted(isinstance(each, LockHeld) for each in done) == [False, True]

    with_zookeeper(work)
