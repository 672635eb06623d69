"""Looks at what `/metrics` shows and this broker has to ask others for.

A scrape begins a look, unless one is under way or was begun less than `EVERY_MS` ago, and shows
what the look before it has found. So a broker that nobody scrapes asks for nothing, and no client's
request waits for a look.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf

from kdist.runtime.process import Process

EVERY_MS = 10_000


class Looks:
    """Owner: the broker. A work raises only bugs and disk failures, which end the broker."""

    def __init__(self, process: Process, *works: Callable[[], Awaitable[None]]) -> None:
        self._process = process
        self._works = works
        self._begun_ms = -inf
        self._is_under_way = False

    def maybe_begin(self) -> None:
        """Begin a look, if it is time for one."""
        now_ms = self._process.clock.monotonic_ns() / 1e6
        if not self._is_under_way and now_ms - self._begun_ms >= EVERY_MS:
            self._begun_ms = now_ms
            self._is_under_way = True
            self._process.start(self._look(), "a look at what scrapes show")

    async def _look(self) -> None:
        try:
            for work in self._works:
                await work()
        finally:
            self._is_under_way = False
