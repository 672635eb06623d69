"""Timers and blocking work, behind an interface that a test can step through.

In the broker one thread owns all state (design D1). Work that blocks goes to `run_blocking`, and
its outcome comes back on the owner's thread; the work itself must not touch state that the owner
reads. A process (`process.py`) is such a `Tasks`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

Done = Callable[[BaseException | None], None]
"""Called with what the blocking work raised, or None.

Invariant: no frame in the exception's traceback, and none of their callers, keeps the exception
when it ends. Such a cycle is freed only by the garbage collector, which the broker lets run
seldom, and the frames hold all that the work had unpacked.
"""


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Do not call it, if it was not called yet."""
        ...


class Tasks(Protocol):
    """Schedules callbacks and blocking work. Every callback runs on the owner's thread."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run `callback` after what is running now."""
        ...

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Run `callback` once `delay_ms` have passed, unless cancelled."""
        ...

    def run_blocking(self, work: Callable[[], None], done: Done) -> None:
        """Run `work` where it may block, then `done` on the owner's thread with what it raised.

        Several calls' work may run concurrently and end in any order.
        """
        ...


def raise_bug(task: asyncio.Task[None]) -> None:
    """A done callback for a task: passes what it raised to the loop's exception handler."""
    if not task.cancelled():
        task.result()
