"""`Tasks` on an asyncio loop: the broker's.

The owner's thread is the loop's. Blocking work runs on a few threads, which share with the owner
only the queue of results. A callback's exception goes to the loop's exception handler.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from kdist.runtime.tasks import Done, Timer


class AsyncioTasks:
    """Callbacks on `loop`, blocking work on at most `threads` threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = 4) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kdist-blocking")
        self._ended: deque[tuple[Done, BaseException | None]] = deque()  # its append is atomic

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_ms / 1000, callback)

    def run_blocking(self, work: Callable[[], None], done: Done) -> None:
        self._pool.submit(self._run, work, done)

    def _run(self, work: Callable[[], None], done: Done) -> None:
        """On a thread of the pool."""
        error: BaseException | None = None
        try:
            work()
        except BaseException as raised:  # noqa: BLE001 - passed to the owner, whatever it is
            error = raised
        self._ended.append((done, error))
        self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        """Call the `done` of the oldest result; does nothing if `close` has called it already."""
        if self._ended:
            done, error = self._ended.popleft()
            done(error)

    def close(self) -> None:
        """Wait for all blocking work and call each `done`. To be called on the owner's thread."""
        self._pool.shutdown(wait=True)
        while self._ended:
            self._deliver()
