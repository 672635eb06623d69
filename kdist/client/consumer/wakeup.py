"""Wakes a waiting poll, whether it waits on the loop or in a thread."""

from __future__ import annotations

import asyncio
import threading

# Deadline minus now may be a mere rounding error, less than the nanosecond that a simulated clock
# counts in: waiting for that remainder would not advance the clock, and so never end.
_SHORTEST_S = 1e-6


class Wakeup:
    """An event, set on the loop. Coroutines use `wait`, one other thread `wait_in_thread`."""

    def __init__(self) -> None:
        self._is_set = asyncio.Event()
        self._bell = threading.Lock()  # unlocked means set
        self._bell.acquire()

    def set(self) -> None:
        """Wake up the waiters, or the next ones to wait."""
        self._is_set.set()
        if self._bell.locked():  # no race: only this method releases it
            self._bell.release()

    def clear(self) -> None:
        """Reset the event for `wait`."""
        self._is_set.clear()

    async def wait(self, timeout_s: float) -> None:
        """Wait until `set` has been called since `clear`, or time is up."""
        try:
            async with asyncio.timeout(max(timeout_s, _SHORTEST_S)):
                await self._is_set.wait()
        except TimeoutError:
            pass  # the caller looks again in either case

    def wait_in_thread(self, timeout_s: float) -> None:
        """Wait until `set` has been called since the last call of this, or time is up."""
        self._bell.acquire(timeout=timeout_s)
