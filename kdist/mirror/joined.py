"""Joins calls: those that come while one is under way are answered by the next one, together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from kdist.errors import KdistError
from kdist.runtime.tasks import raise_bug

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


class Joined(Generic[K, V, R]):
    """A call with many items. Thousands of callers with one item each cost a few calls, not
    thousands in a row; an error is that of all who were joined. Owner: the loop.
    """

    def __init__(self, call: Callable[[dict[K, V]], Awaitable[R]]) -> None:
        self._call = call
        self._items: dict[K, V] = {}  # of the next call
        self._done: asyncio.Future[R] | None = None  # when it is answered
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, items: Mapping[K, V]) -> R:
        """The result of a call with these items and perhaps others; later ones replace earlier."""
        loop = asyncio.get_running_loop()
        self._items |= items
        if self._done is None:
            self._done = loop.create_future()
            self._done.add_done_callback(_retrieve)
        done = self._done
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._run())
            self._running.add_done_callback(raise_bug)
        return await asyncio.shield(done)

    async def _run(self) -> None:
        while (done := self._done) is not None:
            items, self._items, self._done = self._items, {}, None
            try:
                found = await self._call(items)
            except KdistError as error:
                done.set_exception(error)
            except BaseException:
                done.cancel()
                raise
            else:
                done.set_result(found)


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Retrieve an error that nobody may await any more, so that asyncio does not log it."""
    if not done.cancelled():
        done.exception()
