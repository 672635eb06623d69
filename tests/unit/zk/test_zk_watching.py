"""Watchers: the last value is always reported, whatever happens between the reads."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.testing.memory_zookeeper import MemoryEnsemble, MemoryZooKeeper
from kdist.zk.client import SessionState, Stat, Watch, Znode
from kdist.zk.errors import ZooKeeperError
from kdist.zk.watching import ChildrenWatcher, DataWatcher
from tests.examples import examples
from tests.unit.zk.zk_ensemble import connected, run

pytestmark = pytest.mark.played(by=run)

LONG_S = 60.0  # longer than every timeout and delay
PATH = "/p"


async def test_a_watcher_reports_a_missing_znode_and_then_its_values(
    ensemble: MemoryEnsemble, /
) -> None:
    zk = await connected(ensemble)
    told: list[Znode | None] = []
    watcher = DataWatcher(zk, PATH, told.append)
    for change in (zk.create(PATH, b"a"), zk.set(PATH, b"b"), zk.delete(PATH)):
        await asyncio.sleep(1)
        await change
    await asyncio.sleep(1)
    assert [value and value.data for value in told] == [None, b"a", b"b", None]
    watcher.stop()
    await zk.create(PATH)
    await asyncio.sleep(1)
    assert len(told) == 4


async def test_a_watcher_goes_on_in_a_new_session(ensemble: MemoryEnsemble, /) -> None:
    zk, other = await connected(ensemble), await connected(ensemble)
    await other.create(PATH)
    told: list[list[str] | None] = []
    watcher = ChildrenWatcher(zk, PATH, told.append)
    await asyncio.sleep(1)
    ensemble.expire(zk)
    await asyncio.sleep(1)
    await other.create(f"{PATH}/a")
    assert told == [[]]
    await zk.reconnect()
    await asyncio.sleep(1)
    await other.create(f"{PATH}/b")
    await asyncio.sleep(1)
    assert told == [[], ["a"], ["a", "b"]]
    watcher.stop()


def test_what_a_callback_raises_reaches_the_loop() -> None:
    def fail(_value: object) -> None:
        raise ZeroDivisionError

    async def scenario(ensemble: MemoryEnsemble) -> None:
        DataWatcher(await connected(ensemble), PATH, fail)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError):
        run(scenario)


async def change_at_random(zk: MemoryZooKeeper, rng: random.Random) -> None:
    """Create, set and delete the znode and its children, whatever is there."""
    for n in range(rng.randint(1, 12)):
        await asyncio.sleep(rng.choice((0, 0.001, 0.01)))
        child = f"{PATH}/{rng.randint(0, 2)}"
        change = rng.choice(
            (
                lambda: zk.create(PATH, b"new"),
                lambda n=n: zk.set(PATH, b"%d" % n),
                lambda: zk.delete(PATH),
                lambda child=child: zk.create(child),
                lambda child=child: zk.delete(child),
            )
        )
        try:
            await change()
        except ZooKeeperError:
            pass  # refused or lost: the tree is what it is


async def break_at_random(
    ensemble: MemoryEnsemble, zk: MemoryZooKeeper, rng: random.Random
) -> None:
    """Cut the watching client off, expire it, stop the servers; all is mended in the end."""
    for _ in range(rng.randint(0, 4)):
        await asyncio.sleep(rng.uniform(0, 0.03))
        rng.choice(
            (
                lambda: ensemble.suspend(zk, rng.uniform(0, 20)),
                lambda: ensemble.resume(zk),
                lambda: ensemble.expire(zk),
                ensemble.stop,
                ensemble.start,
            )
        )()
    ensemble.start()
    ensemble.resume(zk)


@examples(150)
@given(st.integers(0, 2**32))
def test_the_last_value_is_reported_under_any_interleaving(seed: int) -> None:
    async def scenario(ensemble: MemoryEnsemble) -> None:
        rng = random.Random(seed)
        zk, writers = await connected(ensemble), [await connected(ensemble) for _ in range(2)]
        data: list[Znode | None] = []
        names: list[list[str] | None] = []
        watchers = (DataWatcher(zk, PATH, data.append), ChildrenWatcher(zk, PATH, names.append))
        await asyncio.gather(
            break_at_random(ensemble, zk, rng),
            *(change_at_random(writer, rng) for writer in writers),
        )
        await asyncio.sleep(LONG_S)
        while zk.state is SessionState.EXPIRED:
            await zk.reconnect()
            await asyncio.sleep(LONG_S)
        there = ensemble.tree.exists(PATH) is not None
        # A znode's stat counts children too, and children come and go without a data event.
        last = data[-1]
        assert (last and last.data) == (ensemble.tree.get(PATH).data if there else None)
        assert names[-1] == (ensemble.tree.children(PATH) if there else None)
        for watcher in watchers:
            watcher.stop()
        await asyncio.sleep(0)

    run(scenario, seed)


class CountingClient(MemoryZooKeeper):
    """Counts the watches that it is asked to set."""

    watches = 0

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        self.watches += watch is not None
        return await super().children(path, watch)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        self.watches += watch is not None
        return await super().exists(path, watch)


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_report_that_is_asked_for_sets_no_further_watch(
    ensemble: MemoryEnsemble, /, is_there: bool
) -> None:
    zk, other = await connected(ensemble), await connected(ensemble)
    zk.__class__ = CountingClient
    if is_there:
        await other.create(PATH)
    told: list[list[str] | None] = []
    watcher = ChildrenWatcher(zk, PATH, told.append)
    await asyncio.sleep(1)
    assert isinstance(zk, CountingClient)
    first, expected = zk.watches, [] if is_there else None
    for _ in range(20):
        watcher.report_again()
        await asyncio.sleep(1)
    assert told == [expected] * 21
    assert zk.watches == first
    ensemble.suspend(zk)
    await asyncio.sleep(1)
    ensemble.resume(zk)
    await asyncio.sleep(1)
    if not is_there:
        await other.create(PATH)
    await other.create(f"{PATH}/a")
    await asyncio.sleep(1)
    assert told[-1] == ["a"]
    watcher.stop()
