"""The contract of a client, kept by the one in memory: with delays or not, alone or a follower."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.unit.zk.zk_contract import RequestContract
from tests.unit.zk.zk_memory_world import memory_world
from tests.unit.zk.zk_session_contract import SessionContract


class TestMemoryZooKeeper(RequestContract, SessionContract):
    """Messages that arrive at once, and messages that take up to 2 ms."""

    @pytest.fixture(params=[(0.0, 1), (2.0, 1), (0.0, 3), (2.0, 3)])
    def enter(self, request: pytest.FixtureRequest) -> Any:
        delay_ms_max, count = request.param
        servers = [f"zk{number}" for number in range(count)]
        return partial(memory_world, delay_ms_max=delay_ms_max, servers=servers)
