"""What every `ZooKeeper` keeps about its session: states, cuts, expiry, requests that wait.

The other half of the contract is `zk_contract.py`, which says how both are run.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kdist.zk.client import Check, Create, SessionState, Set, WatchEvent, WatchKind
from kdist.zk.errors import BadVersion, ConnectionLoss, MultiFailed, SessionExpired
from tests.unit.zk.zk_contract import PATIENCE_S, in_loop, in_state, until


class SessionContract:
    """Subclasses give the fixture `enter`, which makes a `World` in the test's loop."""

    @in_loop
    async def test_close_removes_ephemerals_at_once(self, enter: Any) -> None:
        async with enter() as world:
            zk, other = await world.client(), await world.client()
            await zk.create("/e", ephemeral=True)
            assert (await other.get("/e")).stat.ephemeral_owner == zk.session_id != 0
            seen: list[WatchEvent] = []
            await other.exists("/e", seen.append)
            await zk.close()
            assert await other.exists("/e") is None
            assert seen == [WatchEvent(WatchKind.DELETED, "/e")]
            with pytest.raises(SessionExpired):
                await zk.get("/")

    @in_loop
    async def test_each_session_has_a_key_of_its_own(self, enter: Any) -> None:
        async with enter() as world:
            zk, other = await world.client(), await world.client()
            first = zk.session_key
            assert first.id == zk.session_id
            assert first.password != other.session_key.password
            await world.suspend(zk)
            await world.resume(zk)
            await in_state(zk, SessionState.CONNECTED)
            assert zk.session_key == first
            await zk.close()
            await zk.connect()
            assert zk.session_key.id != first.id

    @in_loop
    async def test_a_closed_client_opens_another_session(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            first = zk.session_id
            await zk.close()
            assert zk.state is SessionState.CLOSED
            await zk.connect()
            assert zk.session_id not in (0, first)
            assert await zk.create("/a") == "/a"

    @in_loop
    async def test_a_connect_that_is_cancelled_as_it_succeeds_leaves_no_session(
        self, enter: Any
    ) -> None:
        async with enter() as world:
            zk = await world.client()
            await zk.close()
            connecting = asyncio.ensure_future(zk.connect())
            remove = zk.add_listener(lambda state: connecting.cancel())
            await asyncio.wait([connecting])
            remove()
            assert connecting.cancelled()
            assert zk.state is SessionState.CLOSED

    @in_loop
    async def test_a_session_lives_through_a_short_cut(self, enter: Any) -> None:
        async with enter() as world:
            zk, other = await world.client(), await world.client()
            states: list[SessionState] = []
            remove = zk.add_listener(states.append)
            await zk.create("/e", ephemeral=True)
            session_id = zk.session_id
            await world.suspend(zk)
            await world.resume(zk)
            await in_state(zk, SessionState.CONNECTED)
            assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
            assert zk.session_id == session_id
            assert await other.exists("/e") is not None
            remove()
            await zk.close()
            assert len(states) == 2

    @in_loop
    async def test_a_lost_connection_ends_the_watches_and_reports_it(self, enter: Any) -> None:
        async with enter() as world:
            zk, other = await world.client(), await world.client()
            await zk.create("/a")
            seen: list[WatchEvent] = []
            await zk.get("/a", seen.append)
            await zk.children("/", seen.append)
            await world.suspend(zk)
            await until(lambda: len(seen) == 2)
            assert {event.kind for event in seen} == {WatchKind.LOST}
            assert {event.path for event in seen} == {"/a", "/"}
            await other.set("/a", b"unseen")
            await world.resume(zk)
            assert (await zk.get("/a")).data == b"unseen"
            assert len(seen) == 2

    @in_loop
    async def test_requests_made_while_suspended_wait_in_order(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            await zk.create("/a")
            await world.suspend(zk)
            waiting = [asyncio.ensure_future(zk.set("/a", b"%d" % n)) for n in range(3)]
            await asyncio.sleep(0)
            assert not any(request.done() for request in waiting)
            await world.resume(zk)
            assert [stat.version for stat in await asyncio.gather(*waiting)] == [1, 2, 3]
            assert (await zk.get("/a")).data == b"2"

    @in_loop
    async def test_a_multi_whose_answer_was_lost_is_read_back_whole(self, enter: Any) -> None:
        async with enter() as world:
            zk, other = await world.client(), await world.client()
            await zk.create("/a")
            await world.lose_answers(zk)
            operations = [Check("/a", 0), Set("/a", b"mine", 0), Create("/b", b"mine")]
            writing = asyncio.ensure_future(zk.multi(operations))
            async with asyncio.timeout(PATIENCE_S):
                while await other.exists("/b") is None:
                    await asyncio.sleep(0.002)
            await world.suspend(zk)
            with pytest.raises(ConnectionLoss):
                await writing
            await world.resume(zk)
            await in_state(zk, SessionState.CONNECTED)
            assert [(await zk.get(path)).data for path in ("/a", "/b")] == [b"mine", b"mine"]
            with pytest.raises(MultiFailed) as failed:
                await zk.multi(operations)
            assert isinstance(failed.value.error, BadVersion)

    @in_loop
    async def test_a_request_waits_for_the_session_timeout_at_most(self, enter: Any) -> None:
        async with enter() as world:
            zk = await world.client()
            await zk.create("/mine", ephemeral=True)
            await world.suspend(zk)
            with pytest.raises(ConnectionLoss):
                await zk.create("/never")
            other = await world.client()
            # The server may be late to end the session, which would go on, and do what it was told.
            async with asyncio.timeout(PATIENCE_S):
                while await other.exists("/mine") is not None:
                    await asyncio.sleep(0.01)
            await world.resume(zk)
            await in_state(zk, SessionState.EXPIRED)
            assert await other.exists("/never") is None

    @in_loop
    async def test_an_expired_session_loses_its_ephemerals_and_says_so(self, enter: Any) -> None:
        async with enter() as world:
            zk, other = await world.client(), await world.client()
            states: list[SessionState] = []
            zk.add_listener(states.append)
            await zk.create("/e", ephemeral=True)
            old = zk.session_id
            await world.expire(zk)
            await in_state(zk, SessionState.EXPIRED)
            assert states == [SessionState.SUSPENDED, SessionState.EXPIRED]
            assert await other.exists("/e") is None
            with pytest.raises(SessionExpired):
                await zk.create("/e")
            await zk.reconnect()
            assert states[2:] == [SessionState.CONNECTED]
            assert zk.session_id not in (0, old)
            assert await zk.create("/e", ephemeral=True) == "/e"

    @in_loop
    async def test_a_session_whose_client_is_cut_off_expires_by_itself(self, enter: Any) -> None:
        async with enter() as world:
            zk, other = await world.client(), await world.client()
            await zk.create("/e", ephemeral=True)
            gone: list[WatchEvent] = []
            await other.exists("/e", gone.append)
            await world.suspend(zk)
            await until(lambda: bool(gone))
            assert zk.state is SessionState.SUSPENDED
            await world.resume(zk)
            await in_state(zk, SessionState.EXPIRED)
