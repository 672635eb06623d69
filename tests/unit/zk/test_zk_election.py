"""Elections: one controller at a time, and nothing is written by one that was replaced."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.testing.memory_zookeeper import MemoryEnsemble, MemoryZooKeeper
from kdist.zk.client import Create, SessionState, Set
from kdist.zk.election import (
    Leadership,
    claim,
    current_controller,
    fenced_multi,
    find_leadership,
    resign,
)
from kdist.zk.errors import BadVersion, ConnectionLoss, Fenced, MultiFailed, ZooKeeperError
from kdist.zk.values import ControllerInfo
from tests.examples import examples
from tests.unit.zk.zk_ensemble import EnsembleWorld, connected, run, run_ensemble

pytestmark = pytest.mark.played(by=run)

NOW_MS = 1_700_000_000_000


async def test_the_first_claim_wins_and_the_second_fails(ensemble: MemoryEnsemble, /) -> None:
    one, two = await connected(ensemble), await connected(ensemble)
    assert await current_controller(one) is None
    assert await claim(one, 1, NOW_MS) == Leadership(epoch=1, epoch_zk_version=1)
    assert await claim(two, 2, NOW_MS) is None
    assert await current_controller(two) == ControllerInfo(1, NOW_MS)


def test_claims_at_one_moment_have_one_winner() -> None:
    async def scenario(ensemble: MemoryEnsemble) -> None:
        clients = [await connected(ensemble) for _ in range(5)]
        won = await asyncio.gather(*(claim(zk, n, NOW_MS) for n, zk in enumerate(clients)))
        assert [leadership for leadership in won if leadership] == [Leadership(1, 1)]

    for seed in range(20):
        run(scenario, seed)


async def test_a_second_claim_of_the_controller_finds_its_leadership(
    ensemble: MemoryEnsemble, /
) -> None:
    zk = await connected(ensemble)
    leadership = await claim(zk, 1, NOW_MS)
    assert await claim(zk, 1, NOW_MS + 1) == leadership


async def test_a_claim_whose_answer_was_lost_is_recognised(ensemble: MemoryEnsemble, /) -> None:
    zk, other = await connected(ensemble), await connected(ensemble)
    await other.create("/controller_epoch", b"7")
    claimed = asyncio.ensure_future(claim(zk, 1, NOW_MS))
    while ensemble.tree.exists("/controller") is None:
        await asyncio.sleep(0.0001)
    ensemble.suspend(zk)
    await asyncio.sleep(1)
    ensemble.resume(zk)
    assert await claimed == Leadership(epoch=8, epoch_zk_version=1)
    assert await claim(other, 2, NOW_MS) is None


def test_a_claim_whose_answer_was_lost_is_recognised_on_a_lagging_server() -> None:
    async def scenario(world: EnsembleWorld) -> None:
        zk = await world.client("zk2", "zk3")
        await zk.create("/controller_epoch", b"7")
        first = world.ensemble.server_of(zk)
        second = "zk3" if first == "zk2" else "zk2"

        def move(_: SessionState) -> None:
            world.ensemble.lost_answers = 0.0
            world.ensemble.crash(str(first))

        zk.add_listener(move)
        await asyncio.sleep(1)
        world.ensemble.lag(second, 2_000)
        world.ensemble.lost_answers = 1.0
        assert await claim(zk, 1, NOW_MS) == Leadership(epoch=8, epoch_zk_version=1)
        assert world.ensemble.server_of(zk) == second

    for seed in range(10):
        run_ensemble(scenario, seed)


async def test_a_resignation_lets_another_claim_at_once(ensemble: MemoryEnsemble, /) -> None:
    one, two = await connected(ensemble), await connected(ensemble)
    first = await claim(one, 1, NOW_MS)
    assert first is not None
    await resign(one, first)
    assert await find_leadership(one) is None
    assert await claim(two, 2, NOW_MS) == Leadership(2, 2)
    await resign(one, first)  # its time is over: this must not unseat the other
    assert await current_controller(one) == ControllerInfo(2, NOW_MS)


async def test_a_deleted_controller_znode_does_not_stop_the_next_claim(
    ensemble: MemoryEnsemble, /
) -> None:
    zk = await connected(ensemble)
    first = await claim(zk, 1, NOW_MS)
    assert first is not None
    await zk.delete("/controller")  # as operators do to force an election
    await resign(zk, first)
    assert await claim(zk, 1, NOW_MS) == Leadership(2, 2)


async def test_an_epoch_that_someone_else_wrote_is_not_taken_for_ones_own(
    ensemble: MemoryEnsemble, /
) -> None:
    zk, other = await connected(ensemble), await connected(ensemble)
    await claim(zk, 1, NOW_MS)
    await other.set("/controller_epoch", b"9")
    assert await find_leadership(zk) is None
    assert await claim(zk, 1, NOW_MS) is None


async def test_a_replaced_controller_writes_nothing(ensemble: MemoryEnsemble, /) -> None:
    one, two = await connected(ensemble), await connected(ensemble)
    old = await claim(one, 1, NOW_MS)
    assert old is not None
    await resign(one, old)
    new = await claim(two, 2, NOW_MS)
    assert new is not None
    with pytest.raises(Fenced):
        await fenced_multi(one, old.epoch_zk_version, [Create("/by-the-old")])
    assert await fenced_multi(two, new.epoch_zk_version, [Create("/by-the-new")]) == ["/by-the-new"]
    assert await one.exists("/by-the-old") is None


async def test_a_refused_fenced_write_names_the_callers_own_operation(
    ensemble: MemoryEnsemble, /
) -> None:
    zk = await connected(ensemble)
    leadership = await claim(zk, 1, NOW_MS)
    assert leadership is not None
    with pytest.raises(MultiFailed) as failed:
        await fenced_multi(
            zk, leadership.epoch_zk_version, [Create("/a"), Set("/a", b"", version=5)]
        )
    assert failed.value.index == 1
    assert isinstance(failed.value.error, BadVersion)


async def test_a_controller_that_does_not_know_of_its_expiry_is_fenced(
    ensemble: MemoryEnsemble, /
) -> None:
    one, two = await connected(ensemble), await connected(ensemble)
    old = await claim(one, 1, NOW_MS)
    assert old is not None
    ensemble.suspend(one, noticed_after_ms=20_000)
    await asyncio.sleep(10)
    assert one.state is SessionState.CONNECTED  # or so it thinks
    assert await claim(two, 2, NOW_MS) == Leadership(2, 2)
    ensemble.resume(one)
    with pytest.raises(ConnectionLoss):
        await fenced_multi(one, old.epoch_zk_version, [Create("/late")])
    while one.state is not SessionState.EXPIRED:
        await asyncio.sleep(0.1)
    await one.reconnect()
    with pytest.raises(Fenced):
        await fenced_multi(one, old.epoch_zk_version, [Create("/late")])
    assert await claim(one, 1, NOW_MS) is None


async def rule(
    zk: MemoryZooKeeper, broker_id: int, rng: random.Random, written: list[tuple[int, int]]
) -> None:
    """Claim, write the epoch down a few times under its fence, sometimes resign; go on."""
    for _ in range(12):
        await asyncio.sleep(rng.uniform(0, 3))
        with suppress(ZooKeeperError):
            if zk.state is SessionState.EXPIRED:
                await zk.reconnect()
            leadership = await claim(zk, broker_id, NOW_MS)
            for _ in range(rng.randint(0, 3) if leadership else 0):
                assert leadership is not None
                await fenced_multi(
                    zk, leadership.epoch_zk_version, [Set("/ruler", b"%d" % leadership.epoch)]
                )
                written.append((leadership.epoch, broker_id))
            if leadership and rng.random() < 0.3:
                await resign(zk, leadership)


@examples(100)
@given(st.integers(0, 2**32))
def test_epochs_only_grow_whoever_is_cut_off(seed: int) -> None:
    async def scenario(ensemble: MemoryEnsemble) -> None:
        rng = random.Random(seed)
        clients = [await connected(ensemble) for _ in range(3)]
        auditor = await connected(ensemble)
        await auditor.create("/ruler", b"0")
        written: list[tuple[int, int]] = []
        rulers = [asyncio.ensure_future(rule(zk, n, rng, written)) for n, zk in enumerate(clients)]
        rising = [0]
        while not all(ruler.done() for ruler in rulers):
            await asyncio.sleep(rng.uniform(0, 2))
            zk = rng.choice(clients)
            rng.choice(
                (
                    lambda zk=zk: ensemble.suspend(zk, rng.uniform(0, 9_000)),
                    lambda: [ensemble.resume(each) for each in clients],
                    lambda zk=zk: ensemble.expire(zk),
                )
            )()
            rising.append(int((await auditor.get("/ruler")).data))
            ensemble.resume(zk)
        await asyncio.gather(*rulers)
        assert rising == sorted(rising)
        rulers_by_epoch = dict(written)
        assert all(rulers_by_epoch[epoch] == broker_id for epoch, broker_id in written)

    run(scenario, seed)
