"""A process on an asyncio loop: the broker's.

The owner's thread is the loop's. Blocking work runs on a few threads, which share with the owner
only the queue of results.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kdist.runtime.clock import SystemClock
from kdist.runtime.process import Process, process_of
from kdist.runtime.tasks import Done


def system_rng() -> random.Random:
    """A generator seeded by the operating system, where a test passes a fixed seed."""
    return random.Random()


class AsyncioProcess(Process):
    """Takes `loop`'s exceptions, those of nobody's callbacks too; blocking work on `threads`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: random.Random | None = None, threads: int = 4
    ) -> None:
        super().__init__(loop, SystemClock(), rng or system_rng())
        loop.set_exception_handler(self._hear)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kdist-blocking")
        self._results: deque[tuple[Done, BaseException | None]] = deque()  # its append is atomic

    def _hear(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            (process_of(context) or self).fail(error)
        else:
            loop.default_exception_handler(context)

    def _submit(self, work: Callable[[], None], done: Done) -> None:
        self._pool.submit(self._work, work, done)

    def _work(self, work: Callable[[], None], done: Done) -> None:
        """On a thread of the pool."""
        error: BaseException | None = None
        try:
            work()
        except BaseException as raised:  # noqa: BLE001 - passed to the owner, whatever it is
            error = raised
        self._results.append((done, error))
        del error  # its traceback has this frame: see `Done`
        self.loop.call_soon_threadsafe(self._deliver, context=self.context)

    def _deliver(self) -> None:
        done, error = self._results.popleft()
        done(error)

    def close(self) -> None:
        super().close()
        self._pool.shutdown(wait=False)
