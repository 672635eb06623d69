"""`buffer_memory`: how much of it batches hold, and who waits for some to be freed."""

from __future__ import annotations

import asyncio
from collections import deque


class Memory:
    """Bytes to take, under the accumulator's lock, and to give back.

    Giving back is the loop's, without the lock: it adds to a number of its own. Waiting, too.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._taken = 0
        self._given_back = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def free(self) -> int:
        """What there is to take."""
        return self.size - self._taken + self._given_back

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits: then nothing lingers."""
        return bool(self._waiting)

    def take(self, size: int) -> bool:
        """Whether there were `size` bytes; or all are free, for a record that takes even more."""
        free = self.free
        if size > free and (size <= self.size or free < self.size):
            return False
        self._taken += size
        return True

    def give_back(self, size: int) -> None:
        """So much is free again."""
        self._given_back += size

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
