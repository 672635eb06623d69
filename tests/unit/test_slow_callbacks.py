"""The check that no callback of an event loop takes long finds those that do, and only those."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kdist.runtime.tick_loop import TickLoop
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from tests.unit import slow_callbacks
from tests.unit.slow_callbacks import LIMIT_S, Slow, judge

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "tick": TickLoop,
    "asyncio": asyncio.new_event_loop,
    "virtual": lambda: VirtualLoop(VirtualClock()),
}


def burn(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[Slow]:
    """What is found while this test runs, which is not held against it."""
    found: list[Slow] = []
    monkeypatch.setattr(slow_callbacks, "slow", found)
    return found


@pytest.mark.parametrize("kind", LOOPS)
def test_a_callback_that_takes_long_is_found_on_every_loop(kind: str, slow: list[Slow]) -> None:
    loop = LOOPS[kind]()
    loop.call_soon(burn, LIMIT_S)
    loop.call_soon(time.thread_time)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert [each.seconds >= LIMIT_S for each in slow if "burn" in each.callback] == [True]


def test_a_callback_of_another_thread_is_found_by_that_threads_time(slow: list[Slow]) -> None:
    def run() -> None:
        loop = TickLoop()
        loop.call_soon(burn, LIMIT_S)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    burn(2 * LIMIT_S)
    thread.join()
    assert [each.seconds >= LIMIT_S for each in slow if "burn" in each.callback] == [True]


def test_what_a_callback_waits_or_collects_or_has_other_callbacks_do_is_not_its_own(
    slow: list[Slow],
) -> None:
    loop = VirtualLoop(VirtualClock())
    inner = asyncio.Handle(burn, (LIMIT_S,), loop)

    def wait() -> None:
        threading.Event().wait(LIMIT_S)
        inner._run()
        garbage = [[] for _ in range(100_000)]  # type: ignore[var-annotated]
        gc.collect()
        del garbage

    loop.call_soon(wait)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert all("burn" in each.callback for each in slow if each.seconds >= LIMIT_S)


def test_a_slow_machine_gets_more_time() -> None:
    slow = [Slow(LIMIT_S * 1.5, "f"), Slow(LIMIT_S / 2, "g")]
    assert judge("test", slow, lambda: 1.0)
    assert not judge("test", slow, lambda: 2.0)
    assert not judge("test", slow[1:], lambda: 0.1)


@pytest.mark.parametrize("test", slow_callbacks.EXCEPTIONS)
def test_every_exception_is_of_a_test_that_exists(test: str) -> None:
    file, _, name = test.partition("::")
    text = (Path(slow_callbacks.__file__).parent / file).read_text(encoding="utf-8")
    assert f"def {name.partition('[')[0]}(" in text


def test_an_exception_that_is_not_needed_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_callbacks, "EXCEPTIONS", {"test": "a reason"})
    assert not judge("test", [Slow(LIMIT_S * 100, "f")], lambda: 1.0)
    assert judge("test", [], lambda: 1.0)
