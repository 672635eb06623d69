"""`buffer_memory`: how much of it batches hold, and the callers that wait for some to be freed."""

from __future__ import annotations

import asyncio
from collections import deque


class Memory:
    """A budget of bytes. Any thread takes from it, under the accumulator's lock.

    Only the loop gives back, without the lock, as that adds to a counter of its own. Waiting is
    done on the loop, too.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._taken = 0
        self._given_back = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def free(self) -> int:
        return self.size - self._taken + self._given_back

    @property
    def is_wanted(self) -> bool:
        """Whether a caller waits for memory; batches do not linger then."""
        return bool(self._waiting)

    def take(self, size: int) -> bool:
        """Take `size` bytes if they are free; False if not.

        A record larger than the whole budget may be taken once all of it is free.
        """
        free = self.free
        if size > free and (size <= self.size or free < self.size):
            return False
        self._taken += size
        return True

    def give_back(self, size: int) -> None:
        self._given_back += size

    async def wait(self, size: int) -> None:
        """Wait until so much may be free. Callers are served in the order in which they came."""
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
        """Wake the callers for which there is enough.

        They are woken once a quarter of the budget is free, not just one record's worth: a woken
        thread can then run for a while, instead of contending with the loop for the interpreter
        lock after each record.
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
