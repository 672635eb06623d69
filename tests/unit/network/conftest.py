"""Turns of a real loop are ended by what a test says has taken long, not by a busy machine."""

from __future__ import annotations

import pytest

from kdist.runtime import tick_loop


@pytest.fixture(autouse=True)
def _turns_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tick_loop, "TURN_S", 60.0)
