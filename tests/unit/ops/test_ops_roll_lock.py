"""The lock of whatever stops brokers: one run holds it, for as long as it renews its lease."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext

import pytest

from kdist.ops import roll_lock
from kdist.ops.roll_lock import (
    LockHeld,
    lock_holder,
    moves_announced,
    present_holder,
    release_lock,
    renew_lock,
    take_lock,
)
from kdist.testing.memory_zookeeper import MemoryEnsemble
from kdist.testing.virtual_clock import VirtualClock
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.values import LockHolder

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


# Moves


def test_moves_are_not_begun_while_a_run_holds_the_lock_of_rolls_and_are_beside_it() -> None:
    async def work(keeper: ZooKeeper, clock: VirtualClock) -> None:
        await take_lock(keeper, "anna", "r1", LEASE_MS, clock)
        with pytest.raises(LockHeld, match=r"'anna' holds the lock .* --beside-roll"):
            async with announced(keeper, clock):
                pytest.fail("they began")
        assert await lock_holder(keeper, znodes.MOVES_LOCK) is None
        async with announced(keeper, clock, beside_roll=True):
            assert await lock_holder(keeper, znodes.MOVES_LOCK) is not None
        clock.advance_ms(LEASE_MS + 1)  # the run has died
        async with announced(keeper, clock):
            assert await lock_holder(keeper, znodes.MOVES_LOCK) is not None
        assert await lock_holder(keeper, znodes.MOVES_LOCK) is None

    with_zookeeper(work)


def test_a_roll_that_takes_its_lock_amid_moves_finds_them_announced() -> None:
    """It is not refused: the gate waits for them at each broker."""

    async def work(keeper: ZooKeeper, clock: VirtualClock) -> None:
        async with announced(keeper, clock):
            await take_lock(keeper, "anna", "r1", LEASE_MS, clock)
            holder = await present_holder(keeper, clock, znodes.MOVES_LOCK)
            assert holder is not None
            assert (holder.holder, holder.run) == ("bert (1 of 9)", "moves-1")
            clock.advance_ms(LEASE_MS + 1)  # they were killed: nothing renews it
            assert await present_holder(keeper, clock, znodes.MOVES_LOCK) is None

    with_zookeeper(work)


def test_a_plan_that_was_killed_is_gone_on_with_at_once_and_another_one_waits() -> None:
    async def work(keeper: ZooKeeper, clock: VirtualClock) -> None:
        await take_lock(keeper, "bert", "moves-1", LEASE_MS, clock, znodes.MOVES_LOCK)
        with pytest.raises(LockHeld, match="'bert' holds the lock of moves by run moves-1"):
            async with announced(keeper, clock, "moves-2"):
                pytest.fail("they began")
        async with announced(keeper, clock):
            pass

    with_zookeeper(work)


def test_the_lock_of_moves_is_renewed_with_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(keeper: ZooKeeper, clock: VirtualClock) -> None:
        monkeypatch.setattr(roll_lock, "_MOVES_LEASE_MS", 3)
        done = 1
        async with moves_announced(lambda: nullcontext(keeper), lambda: f"{done} of 9", "m", clock):
            done = 5
            while (holder := await lock_holder(keeper, znodes.MOVES_LOCK)) is not None:
                if holder.holder == "5 of 9":
                    break
                await asyncio.sleep(0)
            assert holder is not None

    with_zookeeper(work)


def announced(
    keeper: ZooKeeper, clock: VirtualClock, run: str = "moves-1", *, beside_roll: bool = False
) -> AbstractAsyncContextManager[None]:
    return moves_announced(
        lambda: nullcontext(keeper), lambda: "bert (1 of 9)", run, clock, beside_roll=beside_roll
    )
