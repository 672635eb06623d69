"""Requests that wait for the controller to be known: for how long, and how they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from kdist.controller.controller import ControllerStatus
from kdist.controller.term import ControllerTerm
from kdist.runtime.clock import VirtualClock
from kdist.runtime.virtual_loop import VirtualLoop

TERM = cast(ControllerTerm, object())


def run(scenario: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop(VirtualClock())
    try:
        loop.run_until_complete(scenario)
    finally:
        loop.close()


@pytest.mark.parametrize("known", [TERM, None])
def test_a_known_controller_is_returned_even_without_time_to_wait(
    known: ControllerTerm | None,
) -> None:
    async def scenario() -> None:
        status = ControllerStatus()
        status.set(known)
        assert await status.term(0) is known
        assert await status.term(-1) is known

    run(scenario())


def test_at_first_no_controller_is_known_and_a_wait_times_out() -> None:
    async def scenario() -> None:
        status = ControllerStatus()
        start_s = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await status.term(700)
        assert asyncio.get_running_loop().time() - start_s == pytest.approx(0.7)
        assert not status.is_known

    run(scenario())


@pytest.mark.parametrize("known", [TERM, None])
def test_a_waiter_gets_the_controller_once_it_is_known(known: ControllerTerm | None) -> None:
    async def scenario() -> None:
        status = ControllerStatus()
        waits = asyncio.ensure_future(status.term(700))
        await asyncio.sleep(0.1)
        status.set(known)
        assert await waits is known

    run(scenario())


def test_a_term_that_ends_before_the_waiter_is_woken_is_not_handed_out() -> None:
    async def scenario() -> None:
        status = ControllerStatus()
        waits = asyncio.ensure_future(status.term(700))
        await asyncio.sleep(0.1)
        status.set(TERM)
        status.forget()
        await asyncio.sleep(0.1)
        assert not waits.done()
        status.set(None)
        assert await waits is None

    run(scenario())
