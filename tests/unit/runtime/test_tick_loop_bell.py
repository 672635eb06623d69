"""The loop's bell: calls from other threads are run, and wake the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from kdist.runtime.tick_loop import TickLoop, ringing


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

    class Bell:
        """A bell whose ring is still under way when the loop hears of it."""

        inner, closed, was_closed_amid_ringing = loop._bell, False, False

        def write(self, ring: bytes) -> None:
            closing.start()
            closing.join(0.1)
            self.was_closed_amid_ringing = self.closed
            self.inner.write(ring)

        def close(self) -> None:
            self.closed = True
            self.inner.close()

    loop._bell = bell = Bell()  # type: ignore[assignment]
    loop.call_soon_threadsafe(loop.stop)
    closing.join()
    assert bell.closed
    assert not bell.was_closed_amid_ringing


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
