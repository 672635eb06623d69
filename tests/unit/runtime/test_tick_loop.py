"""The broker's event loop: the end of a tick, descriptors, callbacks, calls from other threads."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kdist.runtime import tick_loop
from kdist.runtime.tick_loop import (
    READABLE,
    WRITABLE,
    TickLoop,
    _Bell,
    ending_ticks,
    ringing,
    watch,
)
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "tick": TickLoop,
    "asyncio": asyncio.new_event_loop,
    "virtual": lambda: VirtualLoop(VirtualClock()),
}


@pytest.fixture(autouse=True)
def _turns_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine ends none: see `test_tick_loop_turns.py`."""
    monkeypatch.setattr(tick_loop, "TURN_S", 60.0)


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    made = LOOPS[request.param]()
    yield made
    made.close()


def run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(asyncio.wait_for(asyncio.sleep(0.01), 10))


def run_beside_four_threads(loop: TickLoop, work: Callable[[int], object]) -> None:
    """Run the loop until it is stopped, while each thread does `work` with its number."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    late = loop.call_later(30, loop.stop)  # a ring that is lost leaves the loop asleep until then
    for thread in threads:
        thread.start()
    loop.run_forever()
    for thread in threads:
        thread.join()
    late.cancel()


def test_a_tick_end_callback_runs_once_after_all_ready_callbacks(
    loop: asyncio.AbstractEventLoop,
) -> None:
    seen: list[str] = []
    want = ending_ticks(loop, lambda: seen.append("end"))

    def first() -> None:
        want()
        seen.append("first")

    loop.call_soon(first)
    loop.call_soon(seen.append, "second")
    run(loop)
    assert seen == ["first", "second", "end"]


def test_a_tick_end_callback_can_be_requested_again(loop: asyncio.AbstractEventLoop) -> None:
    seen: list[int] = []

    def end() -> None:
        seen.append(len(seen))
        if len(seen) < 3:
            loop.call_soon(want)

    want = ending_ticks(loop, end)
    loop.call_soon(want)
    run(loop)
    assert seen == [0, 1, 2]


def test_a_timer_set_at_a_turns_end_does_not_wait_for_the_next_event(
    loop: asyncio.AbstractEventLoop,
) -> None:
    async def scenario() -> float:
        done = asyncio.Event()

        def end() -> None:
            loop.call_later(0.01, done.set)

        want = ending_ticks(loop, end)
        started = loop.time()
        want()
        await asyncio.wait_for(done.wait(), 10)
        return loop.time() - started

    assert loop.run_until_complete(scenario()) < 5


def test_an_error_in_a_turn_end_callback_reaches_the_exception_handler(
    loop: asyncio.AbstractEventLoop,
) -> None:
    raised: list[object] = []
    loop.set_exception_handler(lambda _loop, context: raised.append(context["exception"]))

    def fail() -> None:
        raise KeyError("missing")

    loop.call_soon(ending_ticks(loop, fail))
    run(loop)
    assert [type(each) for each in raised] == [KeyError]


@pytest.fixture(params=[name for name in LOOPS if name != "virtual"])
def socket_loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    made = LOOPS[request.param]()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    mine, other = socket.socketpair()
    mine.setblocking(False)
    with mine, other:
        yield mine, other


def test_a_descriptor_is_watched_for_the_requested_events(
    socket_loop: asyncio.AbstractEventLoop, pair: tuple[socket.socket, socket.socket]
) -> None:
    mine, other = pair
    seen: list[int] = []

    def on_ready(events: int) -> None:
        seen.append(events)
        watch(socket_loop, mine.fileno(), 0, on_ready)

    other.send(b"x")
    for asked in (READABLE, WRITABLE):
        watch(socket_loop, mine.fileno(), asked, on_ready)
        run(socket_loop)
    watch(socket_loop, mine.fileno(), READABLE, on_ready)
    watch(socket_loop, mine.fileno(), WRITABLE, on_ready)
    run(socket_loop)
    assert seen == [READABLE, WRITABLE, WRITABLE]


def test_a_descriptor_that_is_always_ready_does_not_starve_timers(
    socket_loop: asyncio.AbstractEventLoop, pair: tuple[socket.socket, socket.socket]
) -> None:
    mine, other = pair
    seen: list[str] = []
    want = ending_ticks(socket_loop, lambda: seen.append("end"))

    def on_ready(_: int) -> None:
        seen.append("ready")
        want()

    other.send(b"never read")
    watch(socket_loop, mine.fileno(), READABLE, on_ready)
    run(socket_loop)  # its timer
    watch(socket_loop, mine.fileno(), 0, on_ready)
    run(socket_loop)
    assert seen.count("ready") > 1
    assert seen == ["ready", "end"] * (len(seen) // 2)


def test_sockets_that_become_ready_during_a_turn_share_it() -> None:
    loop = TickLoop()
    mine, others = zip(*(socket.socketpair() for _ in range(3)), strict=True)
    seen: list[str] = []
    want = ending_ticks(loop, lambda: seen.append("end"))

    def serve(number: int) -> None:
        seen.append(mine[number].recv(100).decode())
        want()
        if number < 2:
            others[number + 1].send(b"%d" % (number + 1))

    for number, each in enumerate(mine):
        watch(loop, each.fileno(), READABLE, lambda _, number=number: serve(number))
    others[0].send(b"0")
    run(loop)
    assert seen == ["0", "1", "2", "end", "end", "end"]
    for each in (*mine, *others):
        each.close()
    loop.close()


def test_a_socket_ready_after_a_turn_of_one_shares_the_next_turn() -> None:
    loop = TickLoop()
    (mine, first), (other, second) = socket.socketpair(), socket.socketpair()
    ticks = [""]

    def end() -> None:
        ticks.append("")
        if len(ticks) < 8:
            first.send(b"1")

    want = ending_ticks(loop, end)

    def serve(served: socket.socket) -> None:
        ticks[-1] += served.recv(1).decode()
        want()
        if served is mine and len(ticks) > 1:
            second.send(b"2")  # the late one

    for each in (mine, other):
        watch(loop, each.fileno(), READABLE, lambda _, each=each: serve(each))
    first.send(b"1")
    run(loop)
    assert list(filter(None, ticks))[:4] == ["1", "1", "12", "12"]
    for each in (mine, first, other, second):
        each.close()
    loop.close()


def test_a_socket_that_is_always_ready_does_not_keep_a_turn_open(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    loop = TickLoop()
    mine, other = pair
    seen: list[str] = []
    want = ending_ticks(loop, lambda: seen.append("end"))

    def serve(_: int) -> None:
        seen.append("served")
        want()

    watch(loop, mine.fileno(), READABLE, serve)
    other.send(b"never read")
    run(loop)
    assert seen[:4] == ["served", "end", "served", "end"]
    loop.close()


def test_an_error_in_a_watcher_reaches_the_exception_handler(
    socket_loop: asyncio.AbstractEventLoop, pair: tuple[socket.socket, socket.socket]
) -> None:
    mine, other = pair
    raised: list[object] = []
    socket_loop.set_exception_handler(lambda _loop, context: raised.append(context["exception"]))

    def fail(_: int) -> None:
        watch(socket_loop, mine.fileno(), 0, fail)
        raise KeyError("missing")

    other.send(b"x")
    watch(socket_loop, mine.fileno(), READABLE, fail)
    run(socket_loop)
    assert [type(each) for each in raised] == [KeyError]


def test_a_timer_months_ahead_does_not_disturb_the_loop(
    socket_loop: asyncio.AbstractEventLoop, pair: tuple[socket.socket, socket.socket]
) -> None:
    """The kernel takes a wait in milliseconds of 31 bits: 40 days do not fit."""
    mine, other = pair
    seen: list[bytes] = []

    def on_ready(_: int) -> None:
        seen.append(mine.recv(1))
        if len(seen) == 2:
            socket_loop.stop()
        other.send(b"2")

    late = socket_loop.call_later(40 * 86400, print)
    watch(socket_loop, mine.fileno(), READABLE, on_ready)
    other.send(b"1")
    socket_loop.run_forever()
    assert seen == [b"1", b"2"]
    late.cancel()


def test_system_exit_passes_through_the_loop(
    socket_loop: asyncio.AbstractEventLoop, pair: tuple[socket.socket, socket.socket]
) -> None:
    mine, other = pair

    def leave(_: int) -> None:
        watch(socket_loop, mine.fileno(), 0, leave)
        raise SystemExit(70)

    other.send(b"x")
    watch(socket_loop, mine.fileno(), READABLE, leave)
    with pytest.raises(SystemExit):
        socket_loop.run_forever()


def test_what_waits_behind_a_system_exit_runs_when_the_loop_goes_on() -> None:
    loop, seen = TickLoop(), list[str]()

    def leave() -> None:
        raise SystemExit(70)

    for want in (loop.before_wait(leave), loop.before_wait(lambda: seen.append("behind"))):
        want()
    with pytest.raises(SystemExit):
        loop.run_forever()
    loop.run_until_complete(asyncio.sleep(0))
    assert seen == ["behind"]
    loop.close()


def test_a_rung_callback_runs_once_for_each_ring(loop: asyncio.AbstractEventLoop) -> None:
    seen: list[str] = []
    raised: list[object] = []
    loop.set_exception_handler(lambda _, context: raised.append(type(context["exception"])))
    again = [ringing(loop, lambda: seen.append("again"))]

    def fail() -> None:
        again[0]()
        raise KeyError

    ring, ring_failing = ringing(loop, lambda: seen.append("rung")), ringing(loop, fail)
    for each in (ring, ring_failing, ring):
        each()
    run(loop)
    assert seen == ["rung", "rung", "again"]
    assert raised == [KeyError]
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        ring()


def test_every_call_from_concurrent_threads_is_run() -> None:
    loop, seen, count = TickLoop(), list[int](), 5_000

    def heard(number: int) -> None:
        seen.append(number)
        if len(seen) == 4 * count:
            loop.stop()

    def ring(thread: int) -> None:
        for number in range(count):
            loop.call_soon_threadsafe(heard, thread * count + number)

    run_beside_four_threads(loop, ring)
    assert sorted(seen) == list(range(4 * count))
    loop.close()


def test_every_ring_from_other_threads_is_run() -> None:
    loop, seen, count = TickLoop(), list[int](), 5_000

    def heard() -> None:
        seen.append(threading.get_ident())
        if len(seen) == 4 * count:
            loop.stop()

    ring = ringing(loop, heard)
    run_beside_four_threads(loop, lambda _: [ring() for _ in range(count)])
    assert seen == [threading.get_ident()] * (4 * count)
    loop.close()


def test_a_rung_callback_behind_one_that_ends_the_loop_runs_when_it_resumes() -> None:
    loop, seen = TickLoop(), list[str]()

    def leave() -> None:
        raise SystemExit(70)

    ringing(loop, leave)()
    ringing(loop, lambda: seen.append("rung"))()
    with pytest.raises(SystemExit):
        loop.run_forever()
    loop.run_until_complete(asyncio.sleep(0.01))
    assert seen == ["rung"]
    loop.close()


def test_a_call_from_another_thread_wakes_a_waiting_loop() -> None:
    loop = TickLoop()
    loop.call_soon(loop.call_later, 30, loop.stop)
    for _ in range(3):
        ringing = threading.Timer(0.02, loop.call_soon_threadsafe, (loop.stop,))
        ringing.start()
        began_s = loop.time()
        loop.run_forever()
        assert loop.time() - began_s < 20
        ringing.join()
    loop.close()


def test_a_closed_loop_refuses_calls_from_other_threads() -> None:
    loop = TickLoop()
    loop.close()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon_threadsafe(print)


def test_a_loop_is_not_closed_while_a_thread_rings_it() -> None:
    """The bell's descriptor number may be reused for another file at once."""
    loop = TickLoop()
    closing = threading.Thread(target=loop.close)
    descriptors: list[int] = []

    class Bell(_Bell):
        """A bell whose ring is still under way when the loop is closed."""

        def write(self, ring: Any) -> int:
            closing.start()
            closing.join()
            descriptors.append(self.fileno())
            return super().write(ring)

    loop._bell = Bell(os.dup(loop._bell.fileno() if loop._bell else -1), "r+")
    loop.call_soon_threadsafe(loop.stop)
    assert loop.is_closed()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])


def test_an_interrupted_ring_is_made_up_for_by_the_next() -> None:
    loop, heard = TickLoop(), threading.Event()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    bell, loop._bell = loop._bell, Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        loop.call_soon_threadsafe(heard.set)
    loop._bell = bell
    loop.call_soon_threadsafe(lambda: None)
    assert heard.wait(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class Interrupted:
    """A bell whose ring is interrupted by Ctrl-C before it has any effect."""

    closed = False

    def write(self, _: bytes) -> int:
        raise KeyboardInterrupt
