"""News wake up who waits, on the loop or in a thread, and time passes for who waits for little."""

from __future__ import annotations

import asyncio
import threading

from kdist.client.consumer.news import News
from kdist.runtime.clock import VirtualClock
from kdist.runtime.virtual_loop import VirtualLoop


def test_the_loops_work_is_woken_up_once_there_is_something_new() -> None:
    async def scenario() -> None:
        news = News()
        news.set()
        await news.wait(3600)  # it is known at once
        news.clear()
        loop = asyncio.get_running_loop()
        loop.call_later(2, news.set)
        await news.wait(3600)
        assert 2 <= loop.time() < 3

    VirtualLoop(VirtualClock()).run_until_complete(scenario())


def test_who_waits_for_a_rounding_error_sees_time_pass() -> None:
    async def scenario() -> None:
        loop, news = asyncio.get_running_loop(), News()
        started_s = loop.time()
        await news.wait(8.9e-16)
        assert loop.time() > started_s

    clock = VirtualClock()
    clock.advance_ns(6_825_776_807)
    VirtualLoop(clock).run_until_complete(scenario())


def test_who_is_cancelled_as_news_come_is_cancelled() -> None:
    async def scenario() -> None:
        for turns in range(5):
            news = News()
            waiting = asyncio.ensure_future(news.wait(3600))
            await asyncio.sleep(0)
            news.set()
            for _ in range(turns):
                await asyncio.sleep(0)
            was_under_way = waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled() == was_under_way

    VirtualLoop(VirtualClock()).run_until_complete(scenario())


def test_a_thread_is_woken_up_and_not_twice_for_the_same() -> None:
    news, woken = News(), threading.Event()

    def wait() -> None:
        news.wait_in_thread(60)
        woken.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    news.set()
    news.set()
    assert woken.wait(60)
    waiting.join()
    news.wait_in_thread(0.01)  # what rang after the thread was woken up is told, too
    assert not news._bell.acquire(blocking=False)
