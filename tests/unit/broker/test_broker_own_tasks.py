"""A broker's own tasks: what it waits for when it stops."""

from __future__ import annotations

import asyncio
import random

from kdist.broker.own_tasks import OwnTasks
from kdist.runtime.clock import VirtualClock
from kdist.runtime.loop_tasks import LoopTasks
from kdist.runtime.virtual_loop import VirtualLoop


def test_a_bug_in_a_done_callback_does_not_make_a_stop_wait_for_ever() -> None:
    loop = VirtualLoop(VirtualClock())
    heard: list[dict[str, object]] = []
    tasks = OwnTasks(LoopTasks(loop, random.Random(0)))

    def follow(_: BaseException | None) -> None:
        raise AssertionError

    async def scenario() -> None:
        loop.set_exception_handler(lambda _, context: heard.append(context))
        tasks.run_blocking(lambda: None, follow)
        async with asyncio.timeout(60):
            await tasks.idle()

    loop.run_until_complete(scenario())
    assert isinstance(heard[0]["exception"], AssertionError)
    loop.close()
