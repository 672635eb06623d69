"""The contract of a process: the broker's on asyncio, and the simulator's."""

from __future__ import annotations

import asyncio
import random
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from kdist.errors import UserError
from kdist.runtime.process import AsyncioProcess, Process
from kdist.testing.simulated_disk import PowerLoss
from kdist.testing.virtual_clock import VirtualClock
from tests.stepped_process import SteppedProcess

Run = Callable[[Callable[[], bool]], None]  # runs callbacks until a condition holds


class Stage:
    """A process, and how to run it."""

    def __init__(self, process: Process, run_until: Run) -> None:
        self.process = process
        self.run_until = run_until


def asyncio_stage() -> Iterator[Stage]:
    loop = asyncio.new_event_loop()
    process = AsyncioProcess(loop, threads=2)

    def run_until(condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not condition():
                await asyncio.sleep(0)

        loop.run_until_complete(asyncio.wait_for(wait(), 10))

    yield Stage(process, run_until)
    process.close()
    loop.close()


def virtual_stage() -> Iterator[Stage]:
    process = SteppedProcess(VirtualClock(), random.Random(1))

    def run_until(condition: Callable[[], bool]) -> None:
        assert process.run_until(condition, 10_000)

    yield Stage(process, run_until)


STAGES = {"asyncio": asyncio_stage, "virtual": virtual_stage}


@pytest.fixture(params=STAGES)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    yield from STAGES[request.param]()


def test_callbacks_run_later_in_the_order_of_their_requests(stage: Stage) -> None:
    seen: list[int] = []
    for n in range(5):
        stage.process.call_soon(lambda n=n: seen.append(n))  # type: ignore[misc]
    assert seen == []
    stage.run_until(lambda: len(seen) == 5)
    assert seen == [0, 1, 2, 3, 4]


def test_a_callback_requested_by_a_callback_runs_after_it(stage: Stage) -> None:
    seen: list[str] = []

    def first() -> None:
        stage.process.call_soon(lambda: seen.append("second"))
        seen.append("first")

    stage.process.call_soon(first)
    stage.run_until(lambda: len(seen) == 2)
    assert seen == ["first", "second"]


def test_blocking_work_is_followed_by_done_on_the_owners_thread(stage: Stage) -> None:
    seen: list[object] = []

    def done(error: BaseException | None) -> None:
        seen.extend((error, threading.current_thread()))

    stage.process.run_blocking(lambda: seen.append("work"), done)
    assert None not in seen
    stage.run_until(lambda: len(seen) == 3)
    assert seen == ["work", None, threading.current_thread()]


def test_done_gets_what_the_work_raised(stage: Stage) -> None:
    seen: list[BaseException | None] = []
    error = UserError("no")

    def work() -> None:
        raise error

    stage.process.run_blocking(work, seen.append)
    stage.run_until(lambda: bool(seen))
    assert seen == [error]


class Unpacked:
    """What work has in its locals when it raises."""


@pytest.mark.parametrize("is_awaited", [False, True])
def test_what_work_held_when_it_raised_is_freed_without_the_garbage_collector(
    stage: Stage, without_collector: None, is_awaited: bool
) -> None:
    held: list[weakref.ref[Unpacked]] = []
    told: list[str] = []

    def work() -> None:
        unpacked = Unpacked()
        held.append(weakref.ref(unpacked))
        raise UserError("no")

    async def wait() -> None:
        try:
            await stage.process.blocking(work)
        except UserError as error:
            told.append(str(error))

    if is_awaited:
        stage.process.start(wait(), "wait")
    else:
        stage.process.run_blocking(work, lambda error: told.append(str(error)))
    stage.run_until(lambda: told == ["no"] and held[0]() is None)


def test_each_piece_of_work_gets_its_done(stage: Stage) -> None:
    worked: list[int] = []
    seen: list[int] = []
    for n in range(20):
        stage.process.run_blocking(
            lambda n=n: worked.append(n),  # type: ignore[misc]
            lambda _error, n=n: seen.append(n),  # type: ignore[misc]
        )
    stage.run_until(lambda: len(seen) == 20)
    assert sorted(worked) == sorted(seen) == list(range(20))


def test_a_cancelled_timer_does_not_run(stage: Stage) -> None:
    seen: list[str] = []
    stage.process.call_later(0, lambda: seen.append("cancelled")).cancel()
    stage.process.call_soon(lambda: seen.append("soon"))
    stage.run_until(lambda: bool(seen))
    assert seen == ["soon"]


def test_timers_run_in_the_order_of_their_due_times(stage: Stage) -> None:
    seen: list[str] = []
    stage.process.call_later(8, lambda: seen.append("late"))
    stage.process.call_later(1, lambda: seen.append("early"))
    stage.process.call_soon(lambda: seen.append("soon"))
    stage.run_until(lambda: len(seen) == 3)
    assert seen == ["soon", "early", "late"]


def test_a_process_is_idle_when_its_blocking_work_and_its_done_have_ended(stage: Stage) -> None:
    seen: list[str] = []
    process = stage.process

    def follow(_error: BaseException | None) -> None:
        seen.append("done")
        if len(seen) < 4:  # work that is started by the outcome of other work counts too
            process.call_soon(lambda: process.run_blocking(lambda: seen.append("work"), follow))

    process.run_blocking(lambda: seen.append("work"), follow)
    process.loop.run_until_complete(process.idle())
    assert seen == ["work", "done", "work", "done"]


def test_a_closed_process_runs_no_timer_no_outcome_and_no_blocking_work(stage: Stage) -> None:
    seen: list[str] = []
    process = stage.process
    process.run_blocking(lambda: seen.append("work"), lambda _error: seen.append("done"))
    process.call_soon(lambda: seen.append("soon"))
    process.call_later(0, lambda: seen.append("later"))
    process.close()
    process.run_blocking(lambda: seen.append("refused"), lambda _error: seen.append("done"))
    process.loop.run_until_complete(process.idle())
    assert seen == ["work"]


def test_what_any_code_of_a_process_raises_reaches_its_owner(stage: Stage) -> None:
    process, seen = stage.process, list[BaseException]()
    process.on_failure = seen.append

    def fail(*_: object) -> None:
        raise UserError(str(len(seen)))

    async def failing() -> None:
        await asyncio.sleep(0)
        fail()

    async def failing_deep() -> None:
        asyncio.get_running_loop().call_soon(fail)  # as other people's code would

    process.call_soon(fail)
    stage.run_until(lambda: len(seen) == 1)
    process.call_later(1, fail)
    stage.run_until(lambda: len(seen) == 2)
    process.run_blocking(lambda: None, fail)
    stage.run_until(lambda: len(seen) == 3)
    process.start(failing(), "failing")
    stage.run_until(lambda: len(seen) == 4)
    process.start(failing_deep(), "failing deep")
    stage.run_until(lambda: len(seen) == 5)
    assert [str(error) for error in seen] == ["0", "1", "2", "3", "4"]


def test_what_a_caller_runs_in_a_process_raises_to_the_caller(stage: Stage) -> None:
    seen: list[BaseException] = []
    stage.process.on_failure = seen.append

    async def failing() -> None:
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        stage.process.loop.run_until_complete(stage.process.run(failing()))
    assert seen == []


def test_started_tasks_are_cancelled_together(stage: Stage) -> None:
    process, seen = stage.process, list[str]()

    async def last(name: str) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.001)
            seen.append(name)

    process.start(last("one"), "one")
    process.start(last("two"), "two")
    process.loop.run_until_complete(asyncio.sleep(0))
    process.loop.run_until_complete(process.cancel_started())
    assert seen == ["one", "two"]


def test_a_bug_in_the_outcome_of_blocking_work_does_not_make_a_stop_wait_for_ever(
    stage: Stage,
) -> None:
    process, seen = stage.process, list[BaseException]()
    process.on_failure = seen.append

    def follow(_: BaseException | None) -> None:
        raise AssertionError

    process.run_blocking(lambda: None, follow)
    process.loop.run_until_complete(asyncio.wait_for(process.idle(), 60))
    assert [type(error) for error in seen] == [AssertionError]


def test_blocking_work_on_asyncio_leaves_the_loop_free() -> None:
    loop = asyncio.new_event_loop()
    tasks = AsyncioProcess(loop)
    may_end, ended = threading.Event(), asyncio.Event()
    seen: list[bool] = []
    tasks.run_blocking(lambda: seen.append(may_end.wait(10)), lambda _error: ended.set())
    tasks.call_soon(may_end.set)  # on the loop that the work must not hold up
    loop.run_until_complete(asyncio.wait_for(ended.wait(), 20))
    tasks.close()
    loop.close()
    assert seen == [True]


def virtual_run(seed: int) -> list[tuple[str, int, int]]:
    """The events of ten pieces of work: what happened, to which, when."""
    clock = VirtualClock()
    tasks = SteppedProcess(clock, random.Random(seed), blocking_ms_max=20)
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
    tasks = SteppedProcess(clock, random.Random(1))
    seen: list[int] = []
    tasks.call_later(3_600_000, lambda: seen.append(clock.monotonic_ns()))
    tasks.run_for_ms(3_599_999)
    assert (seen, clock.monotonic_ns()) == ([], 3_599_999_000_000)
    assert not tasks.run_until(lambda: bool(seen), timeout_ms=0.5)
    assert tasks.run_until(lambda: bool(seen), timeout_ms=1)
    assert seen == [pytest.approx(3_600_000_000_000, abs=2)]


def test_a_power_loss_in_virtual_work_reaches_the_simulator() -> None:
    tasks = SteppedProcess(VirtualClock(), random.Random(1))
    seen: list[BaseException | None] = []

    def work() -> None:
        raise PowerLoss

    tasks.run_blocking(work, seen.append)
    with pytest.raises(PowerLoss):
        tasks.run_until_idle()
    assert seen == []
