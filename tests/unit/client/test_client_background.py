"""The loop behind a front that blocks: who waits when it ends is told."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kdist.client.background import BackgroundLoop
from kdist.errors import UserError


def test_who_waits_while_another_thread_closes_the_client_hears_of_it() -> None:
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
