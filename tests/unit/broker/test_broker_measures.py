"""The longest turn of the loop that a scrape shows."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kdist.broker import measures as module
from kdist.broker.measures import Measures
from kdist.runtime.clock import VirtualClock
from kdist.runtime.virtual_loop import VirtualLoop


class Turns:
    """The longest turn in each half second, as they are set."""

    def __init__(self) -> None:
        self.next_s = 0.0

    def take_longest_s(self) -> float:
        taken, self.next_s = self.next_s, 0.0
        return taken


def test_each_of_several_scrapers_sees_the_longest_turn_for_two_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, loop = Turns(), VirtualLoop(VirtualClock())
    monkeypatch.setattr(module, "turn_of", lambda _loop: turns)
    measures = Measures()

    def shown() -> float:
        return measures.broker.loop_longest_turn_seconds()

    async def scenario() -> None:
        watching = asyncio.ensure_future(measures.watch_lag())
        await asyncio.sleep(1)
        assert shown() == 0
        turns.next_s = 3.5
        await asyncio.sleep(1)
        assert [shown(), shown()] == [3.5, 3.5]
        turns.next_s = 0.5
        await asyncio.sleep(110)
        assert [shown(), shown()] == [3.5, 3.5]
        turns.next_s = 0.25
        await asyncio.sleep(15)
        assert shown() == 0.25
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    loop.run_until_complete(scenario())
    loop.close()
