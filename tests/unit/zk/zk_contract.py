"""What every `ZooKeeper` keeps, real or in memory: the tests, without a world to run in.

`test_zk_memory.py` runs them in memory, `tests/integration/test_integration_zookeeper.py` against
a real server. A world makes clients and breaks what is between them and the servers.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import pytest

from kdist.zk.client import (
    Check,
    Create,
    Delete,
    SessionState,
    Set,
    WatchEvent,
    WatchKind,
    ZooKeeper,
)
from kdist.zk.errors import (
    BadVersion,
    InvalidAcl,
    MultiFailed,
    NoAuth,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    TooLarge,
)
from kdist.zk.znode_acls import (
    OPEN,
    READABLE,
    SENSITIVE,
    WORLD,
    AclEntry,
    Permission,
    digest_id,
)

PATIENCE_S = 20.0


class World(Protocol):
    """Where the contract is tested. Every world starts with an empty tree below its chroot."""

    async def client(self, chroot: str = "", user: str = "") -> ZooKeeper:
        """A connected client, that the world closes in the end; with a user it sets ACLs."""
        ...

    async def suspend(self, client: ZooKeeper) -> None:
        """Cut the client off; return when it has noticed."""
        ...

    async def resume(self, client: ZooKeeper) -> None:
        """Let it in again, without waiting for it."""
        ...

    async def lose_answers(self, client: ZooKeeper) -> None:
        """Have the servers carry out what the client asks for, and it hear nothing, until it is
        suspended and resumed."""
        ...

    async def expire(self, client: ZooKeeper) -> None:
        """End the client's session on the servers, without waiting for the client to learn."""
        ...


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A coroutine as a test, in a loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        async def started() -> None:
            await test(*arguments, **fixtures)

        asyncio.run(started())

    return run


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what other tasks and threads bring about."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


async def in_state(client: ZooKeeper, state: SessionState) -> None:
    """Wait for a client to notice."""
    await until(lambda: client.state is state)


class RequestContract:
    """Reads, writes, watches. Subclasses give the fixture `enter`: a `World` in the test's loop."""

    @in_loop
    async def test_what_was_created_is_read_with_its_stat(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            assert await zk.create("/a", b"one") == "/a"
            data, stat = await zk.get("/a")
            assert data == b"one"
            assert (stat.version, stat.children_version, stat.children_count) == (0, 0, 0)
            assert stat.ephemeral_owner == 0
            assert stat.czxid == stat.mzxid > 0
            assert stat.created_ms == stat.modified_ms > 0
            assert await zk.exists("/a") == stat

    @in_loop
    async def test_a_write_counts_the_version_and_moves_the_transaction_id(
        self, enter: Any
    ) -> None:
        async with enter() as world:
            zk = await world.client()
            await zk.create("/a", b"one")
            before = (await zk.get("/a")).stat
            written = await zk.set("/a", b"two", version=0)
            assert written.version == 1
            assert written.czxid == before.czxid
            assert written.mzxid > before.mzxid
            assert await zk.get("/a") == (b"two", written)

    @in_loop
    async def test_a_conditional_write_of_an_old_version_is_refused(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            await zk.create("/a", b"one")
            await zk.set("/a", b"two")
            with pytest.raises(BadVersion):
                await zk.set("/a", b"three", version=0)
            with pytest.raises(BadVersion):
                await zk.delete("/a", version=0)
            assert (await zk.get("/a")).data == b"two"
            await zk.delete("/a", version=1)
            assert await zk.exists("/a") is None

    @in_loop
    async def test_each_error_has_its_exception(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            await zk.create("/a")
            await zk.create("/a/b")
            await zk.create("/e", ephemeral=True)
            for refused, request in (
                (NodeExists, zk.create("/a")),
                (NoNode, zk.create("/missing/child")),
                (NoChildrenForEphemerals, zk.create("/e/child")),
                (NotEmpty, zk.delete("/a")),
                (NoNode, zk.delete("/missing")),
                (NoNode, zk.get("/missing")),
                (NoNode, zk.set("/missing", b"")),
                (NoNode, zk.children("/missing")),
            ):
                with pytest.raises(refused):
                    await request

    @in_loop
    async def test_missing_parents_are_made_on_request(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            await zk.create("/a/b/c", b"leaf", make_parents=True)
            assert await zk.children("/a") == ["b"]
            assert (await zk.get("/a/b/c")).data == b"leaf"
            assert (await zk.get("/a/b")).data == b""

    @in_loop
    async def test_sequential_znodes_get_growing_digits(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            await zk.create("/q")
            first = await zk.create("/q/n_", sequential=True)
            await zk.delete(first)
            second = await zk.create("/q/n_", sequential=True, ephemeral=True)
            assert (first, second) == ("/q/n_0000000000", "/q/n_0000000001")
            assert (await zk.get("/q")).stat.children_version == 3

    @in_loop
    async def test_children_are_sorted_names(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            for name in ("c", "a", "b"):
                await zk.create(f"/p/{name}", make_parents=True)
            assert await zk.children("/p") == ["a", "b", "c"]
            assert "p" in await zk.children("/")

    @in_loop
    async def test_many_znodes_are_read_with_one_request(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client("/some/where")
            for number in range(300):
                await zk.create(f"/a{number}", b"x" * (number % 7))
            await zk.set("/a7", "größer".encode())
            paths = [f"/a{number}" for number in range(301)]
            found = await zk.get_many(paths)
            assert found[300] is None
            assert found[:300] == [await zk.get(path) for path in paths[:300]]
            assert await zk.get_many(["/b/c", "/a1", "/a1"]) == [None, found[1], found[1]]
            assert await zk.get_many([]) == []

    @in_loop
    async def test_many_znodes_are_read_as_earlier_requests_left_them(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            await zk.create("/a")
            created, found, _ = await asyncio.gather(
                zk.create("/b", b"x"), zk.get_many(["/a", "/b", "/c"]), zk.create("/c")
            )
            assert created == "/b"
            assert [znode and znode.data for znode in found] == [b"", b"x", None]

    @in_loop
    async def test_more_paths_than_a_server_takes_are_not_sent(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            with pytest.raises(TooLarge):
                await zk.get_many(["/" + "a" * 1000] * 1000)
            assert await zk.get_many(["/a"]) == [None]

    @in_loop
    async def test_a_multi_is_carried_out_as_one_transaction(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            await zk.create("/a", b"one")
            await zk.create("/gone")
            outcomes = await zk.multi(
                [Check("/a", 0), Create("/b", b"x"), Set("/a", b"two", 0), Delete("/gone")]
            )
            after = (await zk.get("/a")).stat
            assert outcomes == [None, "/b", after, None]
            assert (await zk.get("/b")).stat.czxid == after.mzxid
            assert await zk.exists("/gone") is None

    @in_loop
    async def test_a_refused_multi_says_which_operation_and_changes_nothing(
        self, enter: Any
    ) -> None:
        async with enter() as world:
            zk = await world.client()
            await zk.create("/a", b"one")
            before = await zk.get("/a")
            with pytest.raises(MultiFailed) as failed:
                await zk.multi([Set("/a", b"two"), Create("/b"), Check("/a", 7), Delete("/a")])
            assert failed.value.index == 2
            assert isinstance(failed.value.error, BadVersion)
            assert failed.value.error.path == "/a"
            assert await zk.get("/a") == before
            assert await zk.exists("/b") is None

    @in_loop
    async def test_an_empty_multi_does_nothing(self, enter: Any) -> None:
        async with enter() as world:
            assert await (await world.client()).multi([]) == []

    @in_loop
    async def test_a_later_operation_of_a_multi_sees_the_earlier_ones(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            await zk.multi([Create("/a"), Create("/a/b"), Set("/a/b", b"x", 0), Check("/a/b", 1)])
            assert (await zk.get("/a/b")).data == b"x"

    @in_loop
    async def test_a_read_after_a_sync_shows_what_others_wrote_before(self, enter: Any) -> None:
        async with enter() as world:
            zk, other = await world.client("/some/where"), await world.client("/some/where")
            stats = [await other.create("/a"), await other.set("/a", b"one")]
            await zk.sync("/a")
            assert await zk.get("/a") == (b"one", stats[1])
            write, _, read = await asyncio.gather(
                zk.set("/a", b"two"), zk.sync("/missing"), zk.get("/a")
            )
            assert read == (b"two", write)

    @in_loop
    async def test_requests_are_carried_out_in_the_order_they_were_made(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            await zk.create("/a")
            writes = [zk.set("/a", str(n).encode()) for n in range(20)]
            stats = await asyncio.gather(*writes)
            assert [stat.version for stat in stats] == list(range(1, 21))
            assert (await zk.get("/a")).data == b"19"

    @in_loop
    async def test_a_request_too_large_for_a_server_is_not_sent(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            with pytest.raises(TooLarge):
                await zk.create("/a", bytes(1_000_000))
            with pytest.raises(TooLarge):
                await zk.multi([Create(f"/a{n}", bytes(500_000)) for n in range(2)])
            assert await zk.create("/a", bytes(900_000)) == "/a"

    @in_loop
    async def test_a_data_watch_is_called_once_with_what_happened(self, enter: Any) -> None:
        async with enter() as world:
            zk, other = await world.client(), await world.client()
            seen: list[WatchEvent] = []
            assert await zk.exists("/a", seen.append) is None
            await other.create("/a")
            await until(lambda: len(seen) == 1)
            await other.set("/a", b"unwatched")
            await zk.get("/a", seen.append)
            await other.set("/a", b"watched")
            await until(lambda: len(seen) == 2)
            await zk.exists("/a", seen.append)
            await other.delete("/a")
            await until(lambda: len(seen) == 3)
            kinds = [WatchKind.CREATED, WatchKind.CHANGED, WatchKind.DELETED]
            assert seen == [WatchEvent(kind, "/a") for kind in kinds]

    @in_loop
    async def test_a_children_watch_sees_children_come_and_go(self, enter: Any) -> None:
        async with enter() as world:
            zk, other = await world.client(), await world.client()
            await zk.create("/p")
            seen: list[WatchEvent] = []
            for change in (other.create("/p/a"), other.delete("/p/a"), other.delete("/p")):
                await zk.children("/p", seen.append)
                count = len(seen)
                await change
                await until(lambda count=count: len(seen) == count + 1)
            assert [event.kind for event in seen] == [
                WatchKind.CHILDREN,
                WatchKind.CHILDREN,
                WatchKind.DELETED,
            ]

    @in_loop
    async def test_a_watch_on_what_does_not_exist_is_not_kept_by_get(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            seen: list[WatchEvent] = []
            with pytest.raises(NoNode):
                await zk.get("/a", seen.append)
            await zk.create("/a")
            await zk.set("/a", b"x")
            assert seen == []

    @in_loop
    async def test_a_watch_is_called_before_the_change_is_read(self, enter: Any) -> None:
        async with enter() as world:
            zk, other = await world.client(), await world.client()
            await zk.create("/a", b"0")
            for n in range(1, 30):
                seen: list[WatchEvent] = []
                await zk.get("/a", seen.append)
                write = asyncio.ensure_future(other.set("/a", str(n).encode()))
                while (await zk.get("/a")).data != str(n).encode():
                    pass
                assert len(seen) == 1
                await write

    @in_loop
    async def test_two_watches_on_one_znode_are_both_called(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            await zk.create("/a")
            seen: list[WatchEvent] = []
            await zk.get("/a", seen.append)
            await zk.get("/a", seen.append)
            await zk.set("/a", b"x")
            await until(lambda: len(seen) == 2)

    @in_loop
    async def test_a_chroot_is_made_and_hides_what_is_above(self, enter: Any) -> None:
        async with enter() as world:
            zk, inside = await world.client(), await world.client("/some/where")
            seen: list[WatchEvent] = []
            await inside.children("/", seen.append)
            assert await inside.create("/a", b"x") == "/a"
            await until(lambda: seen == [WatchEvent(WatchKind.CHILDREN, "/")])
            assert await inside.children("/") == ["a"]
            assert (await zk.get("/some/where/a")).data == b"x"
            assert await inside.multi([Create("/s_", sequential=True)]) == ["/s_0000000001"]
            assert await zk.exists("/a") is None

    @in_loop
    async def test_a_znode_has_the_acl_of_its_path_from_each_way_to_create_it(
        self, enter: Any
    ) -> None:
        async with enter() as world:
            zk, anybody = await world.client("/k", "ann"), await world.client("/k")
            own = AclEntry("digest", digest_id(password_of("ann")), Permission.ALL)
            readable = (own, AclEntry(*WORLD, Permission.READ))
            await zk.create("/config/users/bob", b"secret", make_parents=True)
            await zk.create("/consumers")
            await zk.create("/s_", sequential=True)
            await zk.multi([Create("/a"), Create("/a/b"), Create("/config/users/eve")])
            acls = {
                **dict.fromkeys(("/", "/config", "/s_0000000002", "/a", "/a/b"), readable),
                **dict.fromkeys(("/config/users", "/config/users/bob"), (own,)),
                "/config/users/eve": (own,),
                "/consumers": OPEN,
            }
            assert {path: await zk.acl(path) for path in acls} == acls
            assert (await anybody.get("/a")).data == b""
            await anybody.create("/consumers/g")
            with pytest.raises(NoAuth):
                await anybody.acl("/config/users/bob")

    @in_loop
    async def test_what_an_acl_does_not_allow_is_refused(self, enter: Any) -> None:
        async with enter() as world:
            zk, other = await world.client("/k", "ann"), await world.client("/k", "eve")
            await zk.create("/config/users/bob", b"secret", make_parents=True)
            await zk.create("/a", b"one")
            for request in (
                other.get("/config/users/bob"),
                other.get_many(["/a", "/config/users/bob"]),
                other.children("/config/users"),
                other.create("/config/users/mal"),
                other.create("/a/b"),
                other.set("/a", b"two"),
                other.delete("/a"),
                other.set_acl("/a", OPEN),
            ):
                with pytest.raises(NoAuth):
                    await request
            with pytest.raises(MultiFailed) as failed:
                await other.multi([Create("/b")])
            assert isinstance(failed.value.error, NoAuth)
            assert (await zk.get("/a")).data == b"one"

    @in_loop
    async def test_an_acl_can_be_replaced_and_opened_again(self, enter: Any) -> None:
        async with enter() as world:
            anybody, zk = await world.client("/k"), await world.client("/k", "ann")
            await anybody.create("/a", b"one")
            assert await zk.acl("/a") == OPEN
            await zk.set_acl("/a", READABLE)
            with pytest.raises(NoAuth):
                await anybody.set("/a", b"two")
            await zk.set_acl("/a", SENSITIVE)
            with pytest.raises(NoAuth):
                await anybody.get("/a")
            await zk.set_acl("/a", OPEN)
            assert (await anybody.get("/a")).data == b"one"

    @in_loop
    async def test_an_acl_for_its_creator_needs_an_identity(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client("/k")
            await zk.create("/a")
            with pytest.raises(InvalidAcl):
                await zk.set_acl("/a", READABLE)


def password_of(user: str) -> str:
    """The user's `user:password`."""
    return f"{user}:of-{user}"
