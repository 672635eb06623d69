"""Each world, for the tests of a connection; and how long a real loop's turn is.

Turns of a real loop are ended by what a test says has taken long, not by a busy machine.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from network_world import WORLDS, World, real_world, turning_world

from kdist.runtime import tick_loop


@pytest.fixture(autouse=True)
def _turns_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tick_loop, "TURN_S", 60.0)


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    yield from WORLDS[request.param]()


@pytest.fixture(params=["real", "tick loop", "simulated"])
def clear_world(request: pytest.FixtureRequest) -> Iterator[World]:
    yield from WORLDS[request.param]()


@pytest.fixture(params=[real_world, turning_world])
def socket_world(request: pytest.FixtureRequest) -> Iterator[World]:
    yield from request.param()
