"""Setting the ACLs of a tree that was made without: all of it, more than once, and back again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kdist.testing.memory_zookeeper import MemoryEnsemble, MemoryZooKeeper
from kdist.zk.client import Stat, ZooKeeper
from kdist.zk.errors import NoAuth
from kdist.zk.securing import Done, Found, secure
from kdist.zk.znode_acls import OPEN, AclEntry, Permission, ZnodeAcl, acl_of, digest_id
from tests.unit.zk.zk_ensemble import run

pytestmark = pytest.mark.played(by=run)

BROKERS = "broker:of-brokers"
OWN = AclEntry("digest", digest_id(BROKERS), Permission.ALL)
MADE = ("/brokers/topics/clicks", "/config/users/ann", "/consumers/g/ids", "/foreign/app")


async def client_of(ensemble: MemoryEnsemble, digest: str | None = BROKERS) -> MemoryZooKeeper:
    zk = ensemble.client("/kdist", digest=digest)
    await zk.connect()
    return zk


async def made(ensemble: MemoryEnsemble) -> MemoryZooKeeper:
    zk = await client_of(ensemble, None)
    for path in MADE:
        await zk.create(path, b"x", make_parents=True)
    await zk.create("/controller", ephemeral=True)
    return zk


async def secured(
    zk: ZooKeeper,
    wanted: Callable[[str], ZnodeAcl] = acl_of,
    *,
    is_dry: bool = False,
    faults: dict[str, str] | None = None,
) -> Done:
    def report(found: Found) -> None:
        if faults is not None:
            faults[found.path] = found.fault

    return await secure(zk, wanted, report, lambda _: None, is_dry=is_dry)


async def test_a_tree_is_secured_but_for_what_is_open_or_not_kdists(
    ensemble: MemoryEnsemble, /
) -> None:
    anybody, zk = await made(ensemble), await client_of(ensemble)
    done = await secured(zk)
    assert (done.seen, done.changed, done.refused) == (11, 8, [])
    for path in ("/", "/brokers", "/brokers/topics", MADE[0], "/config", "/controller"):
        assert await zk.acl(path) == (OWN, AclEntry("world", "anyone", Permission.READ)), path
    for path in ("/config/users", MADE[1]):
        assert await zk.acl(path) == (OWN,), path
    for path in ("/consumers", MADE[2], "/foreign", MADE[3]):
        assert await zk.acl(path) == OPEN, path
    assert (await anybody.get(MADE[0])).data == b"x"
    with pytest.raises(NoAuth):
        await anybody.delete("/controller")


async def test_nothing_is_created(ensemble: MemoryEnsemble, /) -> None:
    zk = await client_of(ensemble)
    before = ensemble.tree.children("/kdist")
    assert (await secured(zk)).seen == 1
    assert ensemble.tree.children("/kdist") == before == []


async def test_what_is_right_is_left_alone(ensemble: MemoryEnsemble, /) -> None:
    await made(ensemble)
    zk = await client_of(ensemble)
    await secured(zk)
    zxid = ensemble.tree.zxid
    done = await secured(zk)
    assert (done.changed, ensemble.tree.zxid) == (0, zxid)
    assert done.owners == {"digest:broker": 8}


async def test_an_interrupted_run_is_finished_by_the_next(ensemble: MemoryEnsemble, /) -> None:
    await made(ensemble)
    zk = await client_of(ensemble)
    first = asyncio.ensure_future(secured(zk))
    while ensemble.tree.acl("/kdist") == OPEN:
        await asyncio.sleep(0.001)
    first.cancel()
    done = await secured(zk)
    assert done.refused == []
    assert ensemble.tree.acl(f"/kdist{MADE[1]}") == (OWN,)
    assert (await secured(zk)).changed == 0


async def test_a_dry_run_says_what_is_wrong_and_sets_nothing(ensemble: MemoryEnsemble, /) -> None:
    await made(ensemble)
    zk = await client_of(ensemble)
    await secured(zk)
    world = AclEntry("world", "anyone", Permission.READ)
    await zk.set_acl("/controller", (world,))
    await zk.set_acl(MADE[0], OPEN)
    await zk.set_acl(MADE[1], (OWN, world))
    await zk.set_acl("/brokers", (OWN,))
    zxid, faults = ensemble.tree.zxid, dict[str, str]()
    done = await secured(zk, is_dry=True, faults=faults)
    assert faults == {
        "/controller": "nobody may change it",
        MADE[0]: "anybody may change it",
        MADE[1]: "anybody may read it",
        "/brokers": "not everybody may read it",
    }
    assert (done.changed, ensemble.tree.zxid) == (4, zxid)


async def test_who_may_do_a_part_beside_the_owner_is_told(ensemble: MemoryEnsemble, /) -> None:
    await made(ensemble)
    zk = await client_of(ensemble)
    await secured(zk)
    other = AclEntry("digest", digest_id("other:password"), Permission.WRITE)
    await zk.set_acl("/brokers", (OWN, AclEntry("world", "anyone", Permission.READ), other))
    await zk.set_acl("/config/users", (OWN, other._replace(permissions=Permission.READ)))
    assert (await secured(zk, is_dry=True)).owners == {"digest:broker": 8, "digest:other": 2}


async def test_it_can_be_undone(ensemble: MemoryEnsemble, /) -> None:
    anybody, zk = await made(ensemble), await client_of(ensemble)
    await secured(zk)
    await secured(zk, lambda _: OPEN)
    assert (await anybody.get(MADE[1])).data == b"x"
    assert isinstance(await anybody.set(MADE[0], b"y"), Stat)
    assert (await secured(zk, lambda _: OPEN)).changed == 0


async def test_what_belongs_to_others_is_told(ensemble: MemoryEnsemble, /) -> None:
    await made(ensemble)
    await secured(await client_of(ensemble, "other:password"))
    zk = await client_of(ensemble)
    faults = dict[str, str]()
    done = await secured(zk, lambda _: OPEN, faults=faults)
    assert faults["/config/users"] == "these credentials may not read it"
    assert {"/", "/brokers", "/config/users"} <= set(done.refused)
    assert done.changed == 0
    assert done.owners["digest:other"] == 6  # the sensitive ones cannot be seen
