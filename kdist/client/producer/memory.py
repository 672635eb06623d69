"""`buffer_memory`: how much of it batches hold, and who waits for some to be freed."""

from __future__ import annotations

import asyncio
from collections import deque


class Memory:
    """Bytes to take and give back, under the accumulator's lock. Waiting is the loop's."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits: then nothing lingers."""
        return bool(self._waiting)

    def take(self, size: int) -> bool:
        """Whether there were `size` bytes to take. A record may take more than there is at all."""
        if size > self.free and (size <= self.size or self.free < self.size):
            return False
        self.free -= size
        return True

    async def wait(self, size: int) -> None:
        """Until so much may be there. In the order of asking."""
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (min(size, self.size), came)
        self._waiting.append(entry)
        try:
            self.wake()
            await came
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def wake(self) -> None:
        """Let those go on for whom there is enough.

        Once a quarter is free, not one record's worth: who is woken runs for a while then, instead
        of taking turns with the loop, each waiting for the other to let go of the interpreter.
        """
        left = self.free
        while self._waiting:
            size, came = self._waiting[0]
            if left < max(size, self.size // 4):
                return
            left -= size
            self._waiting.popleft()
            if not came.done():
                came.set_result(None)
