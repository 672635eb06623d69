"""Waiting and blocking work, behind an interface that a test can step through.

The broker has one thread that owns all state (design D1). What must block goes to `run_blocking`,
whose outcome comes back on the owner's thread; nothing that runs there may touch state that the
owner reads. `asyncio_tasks.py` is the broker's; `loop_tasks.py` and `virtual_tasks.py` are the
simulator's, with asyncio and without; `inline_tasks.py` has no loop and no time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

Done = Callable[[BaseException | None], None]
"""Told what blocking work raised; None: nothing."""


class Timer(Protocol):
    """A call that has been put off."""

    def cancel(self) -> None:
        """Make sure it does not happen any more."""
        ...


class Tasks(Protocol):
    """Where callbacks come from. Every callback runs on the owner's thread."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run after what is running now."""
        ...

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Run once `delay_ms` have passed, unless cancelled."""
        ...

    def run_blocking(self, work: Callable[[], None], done: Done) -> None:
        """Run `work` where it may block, then `done`, on the owner's thread, with what it raised.

        Different works may run at once and end in any order.
        """
        ...


def raise_bug(task: asyncio.Task[None]) -> None:
    """A task's done callback: what it raised goes to the loop's exception handler at once."""
    if not task.cancelled():
        task.result()
