"""Events that a poll may wait for: announced on the loop, and to a waiting thread."""

from __future__ import annotations

import asyncio
import threading

# A deadline less now may be a rounding error, which does not move a clock that counts nanoseconds:
# who waits for the rest again and again would do so forever.
_SHORTEST_S = 1e-6


class News:
    """Set on the loop. `wait` is for the loop's own work, `wait_in_thread` for one other thread."""

    def __init__(self) -> None:
        self._told = asyncio.Event()
        self._bell = threading.Lock()  # free while it rings
        self._bell.acquire()

    def set(self) -> None:
        """Wake up who waits, or will."""
        self._told.set()
        if self._bell.locked():  # nobody else frees it
            self._bell.release()

    def clear(self) -> None:
        """What was told so far is known."""
        self._told.clear()

    async def wait(self, timeout_s: float) -> None:
        """Until there is something new since `clear`, or time is up."""
        try:
            async with asyncio.timeout(max(timeout_s, _SHORTEST_S)):
                await self._told.wait()
        except TimeoutError:
            pass  # who waits looks once more anyway

    def wait_in_thread(self, timeout_s: float) -> None:
        """Until something happens, or has since the last call, or time is up."""
        self._bell.acquire(timeout=timeout_s)
