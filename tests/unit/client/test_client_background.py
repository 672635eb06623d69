"""The event loop behind the blocking fronts: callers that wait when it stops get an error."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kdist.client.background import BackgroundLoop
from kdist.errors import UserError


def test_a_call_that_waits_fails_when_another_thread_closes_the_client() -> None:
    background, begun = BackgroundLoop("test"), threading.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(lambda: background.run(work()))
        assert begun.wait(60)
        background.stop()
        with pytest.raises(UserError, match="the client was closed meanwhile"):
            waiting.result(60)


def test_calls_that_race_with_the_close_fail_and_do_not_hang() -> None:
    """At whatever moment they are made: no call waits for a loop that has stopped."""

    async def work() -> None:
        await asyncio.sleep(0)

    def ask(background: BackgroundLoop) -> None:
        def ask_on() -> None:
            while True:
                background.run(work())

        with pytest.raises(UserError, match="the client was closed meanwhile"):
            ask_on()

    for _ in range(20):
        background = BackgroundLoop("test")
        with ThreadPoolExecutor(4) as threads:
            asking = [threads.submit(ask, background) for _ in range(2)]
            stopping = [threads.submit(background.stop) for _ in range(2)]
            for each in (*asking, *stopping):
                each.result(60)
        background.stop()


def test_a_blocking_call_on_the_loops_own_thread_is_refused() -> None:
    background = BackgroundLoop("test")

    async def work() -> str:
        with pytest.raises(UserError) as caught:
            background.call(int)
        return str(caught.value)

    assert background.run(work()) == "a callback of the client cannot wait for it"
    background.stop()


def test_a_callback_may_close_the_client() -> None:
    background = BackgroundLoop("test")
    with pytest.raises(UserError, match="the client was closed meanwhile"):
        background.run(background.call_back(background.stop))
