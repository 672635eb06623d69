"""A turn of the broker's loop is ended by time: what is left over comes first in the next."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest

from kdist.runtime.tick_loop import READABLE, TURN_S, TickLoop, turn_of

PAIRS = 5


class Clock:
    """The machine's, and the time that callbacks say they have taken."""

    def __init__(self) -> None:
        self.burnt_s = 0.0

    def now_s(self) -> float:
        return monotonic() + self.burnt_s

    def burn(self) -> None:
        """Take as long as a turn may."""
        self.burnt_s += TURN_S


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loop(clock: Clock) -> Iterator[TickLoop]:
    made = TickLoop(clock.now_s)
    yield made
    made.close()


@pytest.fixture
def ready() -> Iterator[list[socket.socket]]:
    """Sockets that have something to read, for as long as nobody reads."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(PAIRS):
            mine, other = socket.socketpair()
            stack.enter_context(mine)
            stack.enter_context(other).send(b"x")
            found.append(mine)
        yield found


class Shared(deque[asyncio.Handle]):
    """What is ready, to which another thread adds `late` as soon as the loop looks at it."""

    late: asyncio.Handle | None = None

    def _add(self) -> None:
        late, self.late = self.late, None
        if late is not None:
            self.append(late)

    def __iter__(self) -> Iterator[asyncio.Handle]:
        found = list(super().__iter__())
        self._add()
        return iter(found)

    def popleft(self) -> asyncio.Handle:
        found = super().popleft()
        self._add()
        return found


def test_what_another_thread_hands_over_as_a_turn_begins_is_run_after_what_was_there(
    loop: TickLoop,
) -> None:
    done: list[str] = []
    shared: Any = Shared()
    shared.late = asyncio.Handle(done.append, ("late",), loop)
    for name in ("one", "two"):
        shared.append(asyncio.Handle(done.append, (name,), loop))
    loop._ready = shared  # type: ignore[attr-defined] # private to asyncio
    run(loop)
    assert done == ["one", "two", "late"]


def run(loop: TickLoop) -> None:
    loop.run_until_complete(asyncio.wait_for(asyncio.sleep(0), 10))


def serving(
    loop: TickLoop, ready: list[socket.socket], on_ready: Callable[[int], None], times: int
) -> None:
    """Watch all sockets; `on_ready` is called with a socket's number, `times` times in all."""
    left = [times]

    def serve(number: int) -> None:
        on_ready(number)
        left[0] -= 1
        if not left[0]:
            for each in ready:
                loop.watch(each.fileno(), 0, print)
            loop.stop()

    for number, each in enumerate(ready):
        loop.watch(each.fileno(), READABLE, lambda _, number=number: serve(number))  # type: ignore[misc]
    loop.run_forever()


def test_descriptors_that_each_take_a_turn_are_served_in_rotation(
    loop: TickLoop, clock: Clock, ready: list[socket.socket]
) -> None:
    served: list[int] = []

    def burn(number: int) -> None:
        served.append(number)
        clock.burn()

    serving(loop, ready, burn, 4 * PAIRS)
    rounds = [served[start : start + PAIRS] for start in range(0, 4 * PAIRS, PAIRS)]
    assert [sorted(each) for each in rounds] == [list(range(PAIRS))] * 4


def test_quick_descriptors_between_slow_ones_get_at_least_half_of_their_share(
    loop: TickLoop, clock: Clock, ready: list[socket.socket]
) -> None:
    served: list[int] = []

    def burn_at_times(number: int) -> None:
        served.append(number)
        if number % 2:
            clock.burn()

    serving(loop, ready, burn_at_times, 60)
    assert min(served.count(number) for number in range(PAIRS)) >= 60 // PAIRS // 2


def test_a_scheduled_callback_and_a_timer_run_between_descriptors_that_each_take_a_turn(
    loop: TickLoop, clock: Clock, ready: list[socket.socket]
) -> None:
    seen: list[int | str] = []

    def burn(number: int) -> None:
        if not seen:
            loop.call_soon(seen.append, "soon")
            loop.call_later(0, seen.append, "timer")
        seen.append(number)
        clock.burn()

    serving(loop, ready, burn, 3 * PAIRS)
    assert {"soon", "timer"} <= set(seen[:4])


def test_a_descriptor_that_is_watched_no_more_is_not_among_those_passed_over(
    loop: TickLoop, clock: Clock, ready: list[socket.socket]
) -> None:
    def burn(number: int) -> None:
        for each in ready[:number] + ready[number + 1 :]:
            loop.watch(each.fileno(), 0, print)
        clock.burn()

    serving(loop, ready, burn, 3)
    assert loop._tick_selector._passed_over == []


def test_the_hook_at_a_ticks_end_runs_after_each_turn(
    loop: TickLoop, clock: Clock, ready: list[socket.socket]
) -> None:
    seen: list[int | str] = []
    want = loop.before_wait(lambda: seen.append("end"))

    def burn(number: int) -> None:
        want()
        seen.append(number)
        clock.burn()

    serving(loop, ready, burn, PAIRS)
    assert [each == "end" for each in seen] == [False, True] * PAIRS


def test_scheduled_callbacks_that_each_take_a_turn_let_descriptors_and_timers_in(
    loop: TickLoop, clock: Clock, ready: list[socket.socket]
) -> None:
    seen: list[int | str] = []

    def callback(number: int) -> None:
        if not number:
            loop.call_later(0, seen.append, "timer")
        seen.append(number)
        clock.burn()

    def on_ready(_events: int) -> None:
        loop.watch(ready[0].fileno(), 0, on_ready)
        seen.append("descriptor")

    async def scenario() -> None:
        for number in range(PAIRS):
            loop.call_soon(callback, number)
        loop.watch(ready[0].fileno(), READABLE, on_ready)
        while len(seen) < PAIRS + 2:
            await asyncio.sleep(0)

    loop.run_until_complete(scenario())
    assert [each for each in seen if isinstance(each, int)] == list(range(PAIRS))
    assert set(seen[:4]) >= {"timer", "descriptor"}


def test_callbacks_left_over_keep_their_order_and_may_be_cancelled(
    loop: TickLoop, clock: Clock
) -> None:
    seen: list[int] = []

    def callback(number: int) -> None:
        seen.append(number)
        if number < PAIRS:
            loop.call_soon(callback, number + PAIRS)
        clock.burn()

    async def scenario() -> None:
        handles = [loop.call_soon(callback, number) for number in range(PAIRS)]
        handles[2].cancel()
        while len(seen) < 2 * (PAIRS - 1):
            await asyncio.sleep(0)

    loop.run_until_complete(scenario())
    assert seen == [0, 1, 3, 4, 5, 6, 8, 9]


def test_an_interrupt_leaves_the_callbacks_behind_it_for_the_next_run(
    loop: TickLoop,
) -> None:
    seen: list[str] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    loop.call_soon(interrupt)
    loop.call_soon(seen.append, "behind")
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    assert seen == []
    run(loop)
    assert seen == ["behind"]


def test_the_longest_turn_is_that_between_two_polls_and_told_once(
    loop: TickLoop, clock: Clock
) -> None:
    async def scenario() -> None:
        loop.turn.take_longest_s()
        clock.burnt_s += 200
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)  # waiting is no part of a turn
        clock.burnt_s += 100
        await asyncio.sleep(0)

    loop.run_until_complete(scenario())
    run(loop)
    assert 200 <= loop.turn.take_longest_s() < 300
    assert loop.turn.take_longest_s() < 100


def test_the_turn_of_another_loop_is_never_over() -> None:
    loop = asyncio.new_event_loop()
    turn = turn_of(loop)
    loop.close()
    assert not turn.is_over()
    turn.begin()
    assert not turn.is_over()
    turn.end()
    assert turn.take_longest_s() == 0
