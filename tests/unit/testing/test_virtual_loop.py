"""The event loop in virtual time: what it shares with asyncio's, and where it is stricter."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from kdist.errors import UserError
from kdist.testing.simulated_disk import PowerLoss
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import Deadlock, VirtualLoop
from kdist.testing.virtual_process import VirtualProcess

DAY_S = 86_400


def run(scenario: Coroutine[Any, Any, Any]) -> tuple[Any, VirtualClock]:
    clock = VirtualClock()
    loop = VirtualLoop(clock)
    try:
        return loop.run_until_complete(scenario), clock
    finally:
        loop.close()


def test_a_week_of_sleep_takes_no_time_and_moves_the_clock() -> None:
    _, clock = run(asyncio.sleep(7 * DAY_S))
    assert clock.monotonic_ns() == pytest.approx(7 * DAY_S * 10**9, abs=10)


def test_before_time_moves_is_called_at_each_moment_and_its_error_ends_the_run() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        seen: list[float] = []

        def watch() -> None:
            seen.append(loop.time())
            assert len(seen) < 3

        loop.before_time_moves = watch
        await asyncio.sleep(1)
        await asyncio.sleep(1)
        assert seen == pytest.approx([0, 1])
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="< 3"):
        run(scenario())


def test_timers_run_in_the_order_of_their_due_times() -> None:
    async def scenario() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[str, float]] = []

        def tell(name: str) -> None:
            seen.append((name, round(loop.time(), 6)))

        for name, delay in (("third", 3.0), ("first", 1.0), ("second", 2.0)):
            loop.call_later(delay, tell, name)
        await asyncio.sleep(4)
        return seen

    assert run(scenario())[0] == [("first", 1.0), ("second", 2.0), ("third", 3.0)]


def test_no_timer_fires_early() -> None:
    rng = random.Random(3)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(2000):
            delay, start = rng.expovariate(1000), loop.time()
            await asyncio.sleep(delay)
            assert delay - 2e-9 <= loop.time() - start <= delay + 1e-6

    run(scenario())


def test_timeouts_work() -> None:
    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 3600)

    _, clock = run(scenario())
    assert 3600 <= clock.monotonic_ns() / 1e9 < 3600.001


def test_a_deadlock_is_an_error_that_names_the_waiting_tasks() -> None:
    async def waits_for_nothing() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"nothing is scheduled, and 1 tasks wait: .*for_nothing"):
        run(waits_for_nothing())


def test_a_callback_that_raises_ends_the_run() -> None:
    async def scenario() -> None:
        def fail() -> None:
            raise UserError("as told")

        asyncio.get_running_loop().call_later(1, fail)
        await asyncio.sleep(DAY_S)

    with pytest.raises(UserError, match="as told"):
        run(scenario())


def test_a_callback_that_raises_in_the_last_moment_ends_the_run_too() -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().call_soon(lambda: [][1])

    with pytest.raises(IndexError):
        run(scenario())


def test_a_custom_exception_handler_gets_the_errors() -> None:
    seen: list[BaseException] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: seen.append(context["exception"]))
        loop.call_soon(lambda: [][1])
        await asyncio.sleep(1)

    run(scenario())
    assert [type(error) for error in seen] == [IndexError]


def test_threads_and_sockets_are_refused() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(RuntimeError, match="threads have no place in virtual time"):
            await asyncio.to_thread(print)
        with pytest.raises(RuntimeError, match="threads have no place in virtual time"):
            await loop.create_connection(asyncio.Protocol, "localhost", 1)
        with pytest.raises(NotImplementedError):
            loop.add_reader(0, print)

    run(scenario())


def test_call_soon_threadsafe_is_call_soon() -> None:
    async def scenario() -> list[int]:
        seen: list[int] = []
        loop = asyncio.get_running_loop()
        loop.call_soon(seen.append, 1)
        loop.call_soon_threadsafe(seen.append, 2)
        await asyncio.sleep(0)
        return seen

    assert run(scenario())[0] == [1, 2]


def test_the_loop_can_be_run_several_times() -> None:
    loop = VirtualLoop(VirtualClock())
    assert loop.run_until_complete(asyncio.sleep(1, "one")) == "one"
    assert loop.run_until_complete(asyncio.sleep(1, "two")) == "two"
    assert round(loop.time(), 6) == 2
    loop.close()


def tasks_history(seed: int) -> list[tuple[str, float]]:
    """What blocking works and timers do in a run, and when."""
    seen: list[tuple[str, float]] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        tasks = VirtualProcess(loop, random.Random(seed))

        def tell(what: str) -> None:
            seen.append((what, loop.time()))

        for n in range(20):
            tasks.run_blocking(
                lambda n=n: tell(f"work {n}"),  # type: ignore[misc]
                lambda _error, n=n: tell(f"done {n}"),  # type: ignore[misc]
            )
            tasks.call_later(n, lambda n=n: tell(f"timer {n}"))  # type: ignore[misc]
        await asyncio.sleep(1)

    run(scenario())
    return seen


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    history = tasks_history(1)
    assert len(history) == 60
    assert history == tasks_history(1)
    assert history != tasks_history(2)


def test_other_events_come_between_blocking_work_and_its_done() -> None:
    names = [name for name, _ in tasks_history(1)]
    assert all(names.index(f"work {n}") < names.index(f"done {n}") for n in range(20))
    assert names.index("work 1") != names.index("done 1") - 1 or names[:2] != ["work 0", "done 0"]
    assert [name for name in names if "work" in name] != [f"work {n}" for n in range(20)]


def test_done_gets_what_the_work_raised() -> None:
    async def scenario() -> list[BaseException | None]:
        seen: list[BaseException | None] = []
        tasks = VirtualProcess(asyncio.get_running_loop(), random.Random(1))
        tasks.run_blocking(lambda: int("x"), seen.append)  # type: ignore[arg-type]
        await asyncio.sleep(1)
        return seen

    (error,) = run(scenario())[0]
    assert isinstance(error, ValueError)


def test_a_power_loss_in_blocking_work_ends_the_run() -> None:
    seen: list[BaseException | None] = []

    def lose_power() -> None:
        raise PowerLoss

    async def scenario() -> None:
        tasks = VirtualProcess(asyncio.get_running_loop(), random.Random(1))
        tasks.run_blocking(lose_power, seen.append)
        await asyncio.sleep(1)

    with pytest.raises(PowerLoss):
        run(scenario())
    assert seen == []
