"""`Tasks` that end with their broker: it waits for those running, and then none can begin.

Several brokers may live in one process, on one loop. What one of them has deferred (unlinking a
deleted log's files, say) must not touch its directory after another broker has taken that over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kdist.runtime.tasks import Tasks, Timer


class OwnTasks:
    """Owner: the broker."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._under_way = 0
        self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._tasks.call_soon(self._unless_closed(callback))

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return self._tasks.call_later(delay_ms, self._unless_closed(callback))

    def run_blocking(
        self, work: Callable[[], None], done: Callable[[BaseException | None], None]
    ) -> None:
        if self._is_closed:
            return
        self._under_way += 1
        self._idle.clear()

        def ended(error: BaseException | None) -> None:
            self._under_way -= 1
            try:
                if not self._is_closed:
                    done(error)
            finally:  # a bug in `done` must not keep `idle` waiting for ever
                if not self._under_way:
                    self._idle.set()

        self._tasks.run_blocking(work, ended)

    async def blocking(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread; raises what it raises. It runs on if cancelled: see `idle`."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if ended.cancelled():
                return
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        self.run_blocking(work, done)
        await ended

    def _unless_closed(self, callback: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            if not self._is_closed:
                callback()

        return call

    async def idle(self) -> None:
        """Return once no blocking work runs, including work started by other work's callback."""
        while self._under_way:
            await self._idle.wait()
            await asyncio.sleep(0)  # its callback may have started more with `call_soon`
            await asyncio.sleep(0)

    def close(self) -> None:
        """Start nothing more, and call no callback any more."""
        self._is_closed = True
