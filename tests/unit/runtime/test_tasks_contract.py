"""The contract of `Tasks`: the broker's on asyncio, the command line's, the simulator's."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator

import pytest

from kdist.errors import UserError
from kdist.runtime.asyncio_tasks import AsyncioTasks
from kdist.runtime.clock import VirtualClock
from kdist.runtime.inline_tasks import InlineTasks
from kdist.runtime.simulated_disk import PowerLoss
from kdist.runtime.tasks import Tasks
from kdist.runtime.virtual_tasks import VirtualTasks

Run = Callable[[Callable[[], bool]], None]  # runs callbacks until a condition holds


class Stage:
    """A `Tasks`, and how to run it."""

    def __init__(self, tasks: Tasks, run_until: Run, has_time: bool) -> None:
        self.tasks = tasks
        self.run_until = run_until
        self.has_time = has_time


def asyncio_stage() -> Iterator[Stage]:
    loop = asyncio.new_event_loop()
    tasks = AsyncioTasks(loop, threads=2)

    def run_until(condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not condition():
                await asyncio.sleep(0)

        loop.run_until_complete(asyncio.wait_for(wait(), 10))

    yield Stage(tasks, run_until, has_time=True)
    tasks.close()
    loop.close()


def inline_stage() -> Iterator[Stage]:
    tasks = InlineTasks()

    def run_until(condition: Callable[[], bool]) -> None:
        tasks.run_until_idle()
        assert condition()

    yield Stage(tasks, run_until, has_time=False)


def virtual_stage() -> Iterator[Stage]:
    tasks = VirtualTasks(VirtualClock(), random.Random(1))

    def run_until(condition: Callable[[], bool]) -> None:
        assert tasks.run_until(condition, 10_000)

    yield Stage(tasks, run_until, has_time=True)


STAGES = {"asyncio": asyncio_stage, "inline": inline_stage, "virtual": virtual_stage}


@pytest.fixture(params=STAGES)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    yield from STAGES[request.param]()


@pytest.fixture(params=["asyncio", "virtual"])
def timed_stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    yield from STAGES[request.param]()


def test_callbacks_run_later_in_the_order_of_their_requests(stage: Stage) -> None:
    seen: list[int] = []
    for n in range(5):
        stage.tasks.call_soon(lambda n=n: seen.append(n))  # type: ignore[misc]
    assert seen == []
    stage.run_until(lambda: len(seen) == 5)
    assert seen == [0, 1, 2, 3, 4]


def test_a_callback_requested_by_a_callback_runs_after_it(stage: Stage) -> None:
    seen: list[str] = []

    def first() -> None:
        stage.tasks.call_soon(lambda: seen.append("second"))
        seen.append("first")

    stage.tasks.call_soon(first)
    stage.run_until(lambda: len(seen) == 2)
    assert seen == ["first", "second"]


def test_blocking_work_is_followed_by_done_on_the_owners_thread(stage: Stage) -> None:
    seen: list[object] = []

    def done(error: BaseException | None) -> None:
        seen.extend((error, threading.current_thread()))

    stage.tasks.run_blocking(lambda: seen.append("work"), done)
    assert None not in seen
    stage.run_until(lambda: len(seen) == 3)
    assert seen == ["work", None, threading.current_thread()]


def test_done_gets_what_the_work_raised(stage: Stage) -> None:
    seen: list[BaseException | None] = []
    error = UserError("no")

    def work() -> None:
        raise error

    stage.tasks.run_blocking(work, seen.append)
    stage.run_until(lambda: bool(seen))
    assert seen == [error]


def test_each_piece_of_work_gets_its_done(stage: Stage) -> None:
    worked: list[int] = []
    seen: list[int] = []
    for n in range(20):
        stage.tasks.run_blocking(
            lambda n=n: worked.append(n),  # type: ignore[misc]
            lambda _error, n=n: seen.append(n),  # type: ignore[misc]
        )
    stage.run_until(lambda: len(seen) == 20)
    assert sorted(worked) == sorted(seen) == list(range(20))


def test_a_cancelled_timer_does_not_run(stage: Stage) -> None:
    seen: list[str] = []
    stage.tasks.call_later(0, lambda: seen.append("cancelled")).cancel()
    stage.tasks.call_soon(lambda: seen.append("soon"))
    stage.run_until(lambda: bool(seen))
    assert seen == ["soon"]


def test_timers_run_in_the_order_of_their_due_times(timed_stage: Stage) -> None:
    seen: list[str] = []
    timed_stage.tasks.call_later(8, lambda: seen.append("late"))
    timed_stage.tasks.call_later(1, lambda: seen.append("early"))
    timed_stage.tasks.call_soon(lambda: seen.append("soon"))
    timed_stage.run_until(lambda: len(seen) == 3)
    assert seen == ["soon", "early", "late"]


def test_closing_asyncio_tasks_waits_for_work_and_calls_its_done() -> None:
    loop = asyncio.new_event_loop()
    tasks = AsyncioTasks(loop, threads=1)
    begun, may_end = threading.Event(), threading.Event()
    seen: list[str] = []

    def work() -> None:
        begun.set()
        may_end.wait(10)
        seen.append("work")

    tasks.run_blocking(work, lambda _error: seen.append("done"))
    assert begun.wait(10)
    assert seen == []
    may_end.set()
    tasks.close()
    assert seen == ["work", "done"]
    loop.run_until_complete(asyncio.sleep(0))  # the wake-up that came meanwhile finds nothing to do
    assert seen == ["work", "done"]
    loop.close()


def test_blocking_work_on_asyncio_leaves_the_loop_free() -> None:
    loop = asyncio.new_event_loop()
    tasks = AsyncioTasks(loop)
    may_end, ended = threading.Event(), asyncio.Event()
    seen: list[bool] = []
    tasks.run_blocking(lambda: seen.append(may_end.wait(10)), lambda _error: ended.set())
    tasks.call_soon(may_end.set)  # on the loop that the work must not hold up
    loop.run_until_complete(asyncio.wait_for(ended.wait(), 20))
    tasks.close()
    loop.close()
    assert seen == [True]


def test_inline_work_runs_at_once_in_the_caller() -> None:
    tasks = InlineTasks()
    seen: list[str] = []
    tasks.run_blocking(lambda: seen.append("work"), lambda _error: seen.append("done"))
    assert seen == ["work"]
    tasks.run_until_idle()
    assert seen == ["work", "done"]


def test_inline_timers_never_fire() -> None:
    tasks = InlineTasks()
    seen: list[str] = []
    tasks.call_later(0, lambda: seen.append("timer"))
    tasks.run_until_idle()
    assert seen == []


def virtual_run(seed: int) -> list[tuple[str, int, int]]:
    """The events of ten pieces of work: what happened, to which, when."""
    clock = VirtualClock()
    tasks = VirtualTasks(clock, random.Random(seed), blocking_ms_max=20)
    seen: list[tuple[str, int, int]] = []

    def note(what: str, n: int) -> None:
        seen.append((what, n, clock.monotonic_ns()))

    for n in range(10):
        tasks.run_blocking(
            lambda n=n: note("work", n),  # type: ignore[misc]
            lambda _error, n=n: note("done", n),  # type: ignore[misc]
        )
    tasks.run_until_idle()
    return seen


def test_virtual_work_takes_time_and_ends_in_an_order_that_only_the_seed_decides() -> None:
    runs = [virtual_run(seed) for seed in range(20)]
    assert virtual_run(3) == runs[3]
    assert len({tuple((what, n) for what, n, _ in run) for run in runs}) == 20
    for run in runs:
        assert all(0 < ns < 20_000_000 for _, _, ns in run)
        for n in range(10):
            assert [what for what, which, _ in run if which == n] == ["work", "done"]


def test_virtual_time_passes_only_when_run() -> None:
    clock = VirtualClock()
    tasks = VirtualTasks(clock, random.Random(1))
    seen: list[int] = []
    tasks.call_later(3_600_000, lambda: seen.append(clock.monotonic_ns()))
    tasks.run_for_ms(3_599_999)
    assert (seen, clock.monotonic_ns()) == ([], 3_599_999_000_000)
    assert not tasks.run_until(lambda: bool(seen), timeout_ms=0.5)
    assert tasks.run_until(lambda: bool(seen), timeout_ms=1)
    assert seen == [3_600_000_000_000]


def test_a_power_loss_in_virtual_work_reaches_the_simulator() -> None:
    tasks = VirtualTasks(VirtualClock(), random.Random(1))
    seen: list[BaseException | None] = []

    def work() -> None:
        raise PowerLoss

    tasks.run_blocking(work, seen.append)
    with pytest.raises(PowerLoss):
        tasks.run_until_idle()
    assert seen == []
