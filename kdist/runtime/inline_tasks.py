"""`Tasks` without a loop: one thread that waits for everything, and no time that passes.

For a script that has a log directory to itself, as some tests have. Blocking work runs at once,
where it is asked for. Callbacks wait for `run_until_idle`. Timers never come due: the script is
over before, and what it must see done it does itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from kdist.runtime.tasks import Done, Timer


class InlineTimer:
    """A timer that does not come due."""

    def cancel(self) -> None:
        """It would not have happened anyway."""


class InlineTasks:
    """A queue of callbacks that whoever made it runs."""

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
        except Exception as raised:  # noqa: BLE001 - `done` has to know; an interrupt ends the script
            error = raised
        self._ready.append(partial(done, error))

    def run_until_idle(self) -> None:
        """Run the callbacks, and those that they ask for, until none is left."""
        while self._ready:
            self._ready.popleft()()
