"""State changes that kazoo's thread reports in quick succession, within one turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kdist.config.connect_string import ConnectString
from kdist.zk import kazoo_client
from kdist.zk.client import SessionKey, SessionState
from kdist.zk.kazoo_client import KazooZooKeeper

Heard = Callable[["HastySession", SessionState, int], None]


class HastySession:
    """In place of a `KazooSession`: connected, lost again before anybody looks, then connected."""

    def __init__(self, _connect: object, _session_timeout_ms: int, heard: Heard) -> None:
        self.heard = heard
        self.is_ended = False

    def start(self) -> None:
        self.tell(SessionState.CONNECTED)
        self.tell(SessionState.SUSPENDED)

    def tell(self, state: SessionState) -> None:
        asyncio.get_running_loop().call_soon(self.heard, self, state, SessionKey(7, b"7"))

    def end(self) -> asyncio.Future[None]:
        self.is_ended = True
        ended = asyncio.get_running_loop().create_future()
        ended.set_result(None)
        return ended


def test_a_session_that_is_lost_as_it_opens_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kazoo_client, "KazooSession", HastySession)
    zk = KazooZooKeeper(ConnectString.parse("there:2181"), 6_000, 6_000)

    async def scenario() -> None:
        await zk.connect()
        assert zk.state is SessionState.SUSPENDED
        session = zk._session
        assert isinstance(session, HastySession)  # else nobody would connect again
        assert not session.is_ended
        session.tell(SessionState.CONNECTED)
        await asyncio.sleep(0)
        assert zk.state is SessionState.CONNECTED
        await zk.close()
        assert session.is_ended

    asyncio.run(scenario())
