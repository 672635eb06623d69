"""`Wakeup` wakes its waiters, on the loop or in a thread, and even tiny timeouts end."""

from __future__ import annotations

import asyncio
import threading

from kdist.client.consumer.wakeup import Wakeup
from kdist.runtime.clock import VirtualClock
from kdist.runtime.virtual_loop import VirtualLoop


def test_a_waiter_on_the_loop_wakes_up_when_there_is_news() -> None:
    async def scenario() -> None:
        wakeup = Wakeup()
        wakeup.set()
        await wakeup.wait(3600)  # it is known at once
        wakeup.clear()
        loop = asyncio.get_running_loop()
        loop.call_later(2, wakeup.set)
        await wakeup.wait(3600)
        assert 2 <= loop.time() < 3

    VirtualLoop(VirtualClock()).run_until_complete(scenario())


def test_a_timeout_as_small_as_a_rounding_error_ends() -> None:
    async def scenario() -> None:
        loop, wakeup = asyncio.get_running_loop(), Wakeup()
        started_s = loop.time()
        await wakeup.wait(8.9e-16)
        assert loop.time() > started_s

    clock = VirtualClock()
    clock.advance_ns(6_825_776_807)
    VirtualLoop(clock).run_until_complete(scenario())


def test_a_cancellation_that_races_with_news_is_kept() -> None:
    async def scenario() -> None:
        for turns in range(5):
            wakeup = Wakeup()
            waiting = asyncio.ensure_future(wakeup.wait(3600))
            await asyncio.sleep(0)
            wakeup.set()
            for _ in range(turns):
                await asyncio.sleep(0)
            was_under_way = waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled() == was_under_way

    VirtualLoop(VirtualClock()).run_until_complete(scenario())


def test_a_thread_wakes_up_once_for_each_news() -> None:
    wakeup, woken = Wakeup(), threading.Event()

    def wait() -> None:
        wakeup.wait_in_thread(60)
        woken.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    wakeup.set()
    wakeup.set()
    assert woken.wait(60)
    waiting.join()
    wakeup.wait_in_thread(0.01)  # a wake-up that came after the thread was woken up counts, too
    assert not wakeup._bell.acquire(blocking=False)
