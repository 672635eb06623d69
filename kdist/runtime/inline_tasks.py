"""`Tasks` without a loop or time: everything runs on the caller's thread.

For scripts and tests that have a log directory to themselves. Blocking work runs at once, inside
`run_blocking`. Callbacks wait for `run_until_idle`. Timers never fire: a script ends before they
would, and calls directly what it needs done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from kdist.runtime.tasks import Done, Timer


class InlineTimer:
    """A timer that never fires."""

    def cancel(self) -> None:
        """Does nothing."""


class InlineTasks:
    """A queue of callbacks, which its owner runs with `run_until_idle`."""

    def __init__(self) -> None:
        self._ready: deque[Callable[[], None]] = deque()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._ready.append(callback)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:  # noqa: ARG002
        return InlineTimer()

    def run_blocking(self, work: Callable[[], None], done: Done) -> None:
        error: Exception | None = None
        try:
            work()
        except Exception as raised:  # noqa: BLE001 - passed to `done`; an interrupt ends the script
            error = raised
        self._ready.append(partial(done, error))

    def run_until_idle(self) -> None:
        """Run callbacks, and those that they schedule, until none is left."""
        while self._ready:
            self._ready.popleft()()
