"""The contract of a ZooKeeper client, kept by the one in memory: with and without delays."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.unit.zk.zk_contract import RequestContract
from tests.unit.zk.zk_memory_world import memory_world
from tests.unit.zk.zk_session_contract import SessionContract


class TestMemoryZooKeeper(RequestContract, SessionContract):
    """Messages that arrive at once, and messages that take up to 2 ms."""

    @pytest.fixture(params=[0.0, 2.0])
    def enter(self, request: pytest.FixtureRequest) -> Any:
        return partial(memory_world, delay_ms_max=request.param)
