"""A process in virtual time: killed, stopped, kept busy, with a wrong clock; and its neighbours."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pytest

from kdist.errors import DiskFailed, UserError
from kdist.runtime.tasks import Done
from kdist.testing.simulated_disk import PowerLoss, SimulatedDisk
from kdist.testing.simulated_network import SimulatedNetwork
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from kdist.testing.virtual_process import VirtualProcess
from tests.unit.network.network_world import RawPeer, framed


class Machine:
    """Two processes on a loop, each with a failure list."""

    def __init__(self) -> None:
        self.loop = VirtualLoop(VirtualClock())
        self.one, self.two = (VirtualProcess(self.loop, random.Random(n)) for n in (1, 2))
        self.failed: dict[str, list[BaseException]] = {"one": [], "two": []}
        self.one.on_failure = self.failed["one"].append
        self.two.on_failure = self.failed["two"].append

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(scenario)


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.one.unwind()
    made.two.unwind()
    left = asyncio.all_tasks(made.loop)
    for task in left:
        task.cancel()
    if left:
        made.loop.run_until_complete(asyncio.wait(left))
    made.loop.close()


async def ticking(process: VirtualProcess, seen: list[float], every_s: float = 1.0) -> None:
    """Note the time again and again."""
    try:
        while True:
            await asyncio.sleep(every_s)
            seen.append(round(asyncio.get_running_loop().time(), 3))
    finally:
        seen.append(-1)


async def test_nothing_of_a_killed_process_runs_any_more(machine: Machine) -> None:
    seen: list[Any] = []
    process = machine.one
    process.start(ticking(process, seen), "ticking")
    process.call_later(2_500, lambda: seen.append("timer"))
    process.run_blocking(lambda: seen.append("work"), lambda _: seen.append("done"))
    await asyncio.sleep(2.2)
    process.run_blocking(lambda: seen.append("late work"), lambda _: seen.append("done"))
    process.call_soon(lambda: seen.append("soon"))
    process.kill()
    await asyncio.sleep(10)
    assert seen == ["work", "done", 1.0, 2.0]


async def test_blocking_work_that_is_under_way_at_a_kill_tells_nobody_of_its_end(
    machine: Machine,
) -> None:
    seen: list[str] = []
    machine.one.blocking_ms_max = 0
    worked = asyncio.Event()

    def work() -> None:
        machine.one.clock.wait_ms(100)
        worked.set()

    machine.one.run_blocking(work, lambda _: seen.append("done"))
    await worked.wait()
    machine.one.kill()
    await asyncio.sleep(1)
    assert seen == []


async def test_a_stopped_process_does_in_the_end_what_was_due_meanwhile(machine: Machine) -> None:
    seen: list[Any] = []
    machine.one.start(ticking(machine.one, seen), "ticking")
    await asyncio.sleep(1.5)
    machine.one.pause()
    machine.one.call_soon(lambda: seen.append("soon"))
    await asyncio.sleep(10)
    assert seen == [1.0]
    machine.one.resume()
    await asyncio.sleep(1.2)
    assert seen == [1.0, "soon", 11.5, 12.5]


async def test_a_stopped_process_hears_what_arrives_for_it_later(machine: Machine) -> None:
    network = SimulatedNetwork(machine.loop, random.Random(1))
    received = RawPeer()
    await machine.one.run(network.host("one").listen(lambda: received, "", 9092))  # type: ignore[arg-type]
    peer = await network.host("two").connect(RawPeer, "one", 9092)
    machine.one.pause()
    peer.send(b"hello")
    await asyncio.sleep(5)
    assert received.received == b""
    machine.one.resume()
    await asyncio.sleep(1)
    assert received.received == framed(b"hello")


def test_what_a_protocol_raises_fails_the_process_that_listened(machine: Machine) -> None:
    network = SimulatedNetwork(machine.loop, random.Random(1))

    class Failing(RawPeer):
        def buffer_updated(self, nbytes: int) -> None:
            raise UserError("as told")

    async def scenario() -> None:
        await machine.one.run(network.host("one").listen(Failing, "", 9092))  # type: ignore[arg-type]
        peer = await machine.two.run(network.host("two").connect(RawPeer, "one", 9092))
        peer.send(b"hello")
        await asyncio.sleep(1)

    machine.run(scenario())
    assert {str(error) for error in machine.failed["one"]} == {"as told"}
    assert machine.failed["two"] == []


def test_a_failure_ends_its_own_process_and_nobody_else(machine: Machine) -> None:
    async def failing() -> None:
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: [][1])
        future.set_result(None)
        await asyncio.sleep(1)

    async def scenario() -> None:
        seen: list[float] = []
        machine.two.start(ticking(machine.two, seen), "ticking")
        machine.one.start(failing(), "failing")
        await asyncio.sleep(2.5)
        assert seen == [1.0, 2.0]

    machine.run(scenario())
    assert [type(error) for error in machine.failed["one"]] == [IndexError]
    assert machine.failed["two"] == []


def test_a_task_that_nobody_awaits_fails_its_process(machine: Machine) -> None:
    async def failing() -> None:
        raise UserError("unheard")

    async def scenario() -> None:
        async def begin() -> None:
            asyncio.ensure_future(failing())  # noqa: RUF006 - which is the point

        await machine.one.run(begin())
        await asyncio.sleep(1)

    machine.run(scenario())
    assert [str(error) for error in machine.failed["one"]] == ["unheard"]


def test_what_belongs_to_no_process_ends_the_run(machine: Machine) -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().call_soon(lambda: [][1])
        await asyncio.sleep(1)

    with pytest.raises(IndexError):
        machine.run(scenario())


async def test_a_process_with_a_fast_clock_is_early_and_sees_later_times(machine: Machine) -> None:
    seen: list[float] = []
    world, own = machine.loop.clock, machine.one.clock
    await asyncio.sleep(100)
    own.skew(1.25, step_ms=-60_000)
    assert own.monotonic_ns() == world.monotonic_ns()
    assert world.now_ms() - own.now_ms() == 60_000
    machine.one.start(ticking(machine.one, seen, 10), "ticking")
    await asyncio.sleep(8.1)
    assert seen == [110]
    assert machine.loop.time() == pytest.approx(108.1)
    own.skew(1)
    await asyncio.sleep(10)
    assert seen == [110, 118.025]  # that timer was set while the clock ran fast
    assert own.monotonic_ns() / 1e9 == pytest.approx(100 + 8.1 * 1.25 + 10)


async def test_a_call_that_takes_time_keeps_its_process_busy_and_nobody_else(
    machine: Machine,
) -> None:
    seen: list[tuple[str, float]] = []

    def note(name: str) -> None:
        seen.append((name, round(machine.loop.time(), 3)))

    def write() -> None:
        note("begun")
        machine.one.clock.wait_ms(500)
        note("written")
        machine.one.call_soon(lambda: note("next"))

    machine.one.call_soon(write)
    machine.one.call_later(100, lambda: note("timer"))
    machine.two.call_later(200, lambda: note("other"))
    await asyncio.sleep(1)
    assert seen == [
        ("begun", 0),
        ("written", 0.5),
        ("other", 0.2),
        ("next", 0.5),
        ("timer", 0.5),
    ]
    assert machine.one.clock.waits() == 1


async def test_blocking_work_takes_its_time_without_keeping_the_process_busy(
    machine: Machine,
) -> None:
    seen: list[tuple[str, float]] = []
    machine.one.blocking_ms_max = 0

    def note(name: str) -> None:
        seen.append((name, round(machine.loop.time(), 3)))

    def work() -> None:
        machine.one.clock.wait_ms(500)
        note("worked")

    machine.one.run_blocking(work, lambda _: note("done"))
    machine.one.call_later(100, lambda: note("timer"))
    await asyncio.sleep(1)
    assert seen == [("worked", 0.5), ("timer", 0.1), ("done", 0.5)]


async def test_what_a_busy_process_sends_leaves_when_it_is_done(machine: Machine) -> None:
    network = SimulatedNetwork(machine.loop, random.Random(1))
    served = RawPeer()
    await network.host("two").listen(lambda: served, "", 9092)
    peer = await machine.one.run(network.host("one").connect(RawPeer, "two", 9092))

    def write() -> None:
        machine.one.clock.wait_ms(500)
        peer.send(b"written")

    machine.one.call_soon(write)
    await asyncio.sleep(0.45)
    assert served.received == b""
    await asyncio.sleep(0.1)
    assert served.received == framed(b"written")


@pytest.mark.parametrize("rate", [1, 0.95, 1.05])
def test_a_timer_is_never_early_by_its_processs_clock(machine: Machine, rate: float) -> None:
    """Whoever finds that its time has not come sets it again, at the same moment, for ever."""
    rng, early = random.Random(5), 0
    loop, clock = machine.loop, machine.one.clock

    async def scenario() -> None:
        nonlocal early
        for _ in range(2_000):
            due_s, ended = loop.time() + rng.uniform(0, 3) / 7, loop.create_future()
            loop.call_at(due_s, ended.set_result, None)
            await ended
            early += loop.time() < due_s

    clock.skew(rate)
    machine.run(machine.one.run(scenario()))
    assert early == 0


class Interrupted:
    """A process whose blocking work is interrupted, mostly, and its disk."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = VirtualLoop(VirtualClock())
        rng = random.Random(seed)
        self.process = VirtualProcess(self.loop, rng, threads_rng=random.Random(seed + 1))
        self.failed: list[BaseException] = []
        self.process.on_failure = self.failed.append
        self.disk = SimulatedDisk(rng, self.process.clock)

    def make_files(self) -> None:
        """Several calls."""
        for n in range(20):
            self.disk.create(f"/{n}")

    def seen(self, work: Callable[[], None], done: Done = lambda _error: None) -> list[int]:
        """How many files there were each ms, until the work was done."""
        found: list[int] = []
        ended: list[BaseException | None] = []

        def end(error: BaseException | None) -> None:
            done(error)
            ended.append(error)

        async def scenario() -> None:
            self.process.run_blocking(work, end)
            while not (ended or self.failed):
                await asyncio.sleep(0.001)
                found.append(len(self.disk._names.root.entries))

        self.loop.run_until_complete(scenario())
        return found


def some_seed_of(is_so: Callable[[Interrupted], bool]) -> int:
    """The first seed of which it is so."""
    return next(seed for seed in range(50) if is_so(Interrupted(seed)))


def is_interrupted(made: Interrupted) -> bool:
    return len({*made.seen(made.make_files)} - {0, 20}) > 2


def test_the_loop_sees_half_of_what_a_thread_does() -> None:
    made = Interrupted(some_seed_of(is_interrupted))
    seen = made.seen(made.make_files)
    assert seen == sorted(seen)
    assert seen[-1] == 20


def test_interrupted_work_can_be_repeated() -> None:
    seed = some_seed_of(is_interrupted)
    one, two = Interrupted(seed), Interrupted(seed)
    assert one.seen(one.make_files) == two.seen(two.make_files)


def test_interrupted_work_keeps_its_process_from_nothing() -> None:
    made = Interrupted(some_seed_of(is_interrupted))
    late_ms: list[float] = []

    def tick(due_s: float) -> None:
        late_ms.append(1_000 * (made.loop.time() - due_s))
        made.process.call_later(1, partial(tick, made.loop.time() + 0.001))

    made.process.call_later(1, partial(tick, made.loop.time() + 0.001))
    made.disk.latency_ms = lambda _call: 5.0
    made.seen(made.make_files)
    assert len(late_ms) > 90
    assert max(late_ms) < 0.001


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_what_interrupted_work_raises_is_told(is_power_lost: bool) -> None:
    made = Interrupted(some_seed_of(is_interrupted))
    if is_power_lost:
        made.disk.crash_at(10)
    else:
        made.disk.fail(after_calls=9, forever=False)
    told: list[BaseException | None] = []
    assert made.seen(made.make_files, told.append)[-1] in (9, 10)
    assert [type(error) for error in told] == ([] if is_power_lost else [DiskFailed])
    assert [type(error) for error in made.failed] == ([PowerLoss] if is_power_lost else [])


def test_work_that_is_interrupted_when_its_process_is_killed_goes_no_further() -> None:
    made = Interrupted(some_seed_of(is_interrupted))
    ended: list[str] = []
    before = threading.active_count()

    def work() -> None:
        try:
            made.make_files()
        finally:
            ended.append("finally")

    async def scenario() -> None:
        made.process.run_blocking(work, lambda _: ended.append("done"))
        while not made.disk._names.root.entries:
            await asyncio.sleep(0.001)
        made.process.kill()
        count = len(made.disk._names.root.entries)
        await asyncio.sleep(10)
        assert (len(made.disk._names.root.entries), ended) == (count, [])
        made.process.unwind()
        assert (len(made.disk._names.root.entries), ended) == (count, ["finally"])
        await asyncio.sleep(10)
        assert ended == ["finally"]

    made.loop.run_until_complete(scenario())
    assert threading.active_count() == before
