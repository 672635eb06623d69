"""An asyncio event loop in virtual time: the simulator's and the tests'.

When nothing is left to run now, time jumps to the next timer. There are no sockets, threads or
signals, so that a run depends on its inputs alone: the same seed gives the same run, as long as the
code does not depend on the order of `id`s or of a set of strings.

What would hang or pass unnoticed on a real loop ends the run here: a main coroutine that waits
while nothing is scheduled raises `Deadlock`, and an exception in a callback is raised by the run.

asyncio's own `BaseEventLoop` does the work. It asks its selector to wait for events until the next
timer is due; the selector here moves the clock there instead.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, NoReturn

from kdist.runtime.clock import VirtualClock


class Deadlock(Exception):
    """The main coroutine is not done, and nothing is scheduled that could wake it."""


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop whose `time()` is `clock`'s. Only the loop moves that clock while it runs."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock
        self._raised: BaseException | None = None
        self.before_time_moves: Callable[[], None] = lambda: None
        self._selector = self  # what BaseEventLoop waits on: `select` below

    def time(self) -> float:
        """Seconds on the virtual clock."""
        return self._clock.monotonic_ns() / 1e9

    def run_forever(self) -> None:
        """Run until `stop`, or until something raises."""
        super().run_forever()
        self._raise()

    def _raise(self) -> None:
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    def select(self, timeout: float | None) -> list[NoReturn]:
        """Move the clock `timeout` seconds on; None means no timer, and nothing to run."""
        self._raise()
        if timeout is None:
            raise Deadlock(_deadlock_sentence(self))
        if timeout > 0:
            self.before_time_moves()
            self._clock.advance_ns(math.ceil(timeout * 1e9))  # never short of the timer
        return []

    def _process_events(self, event_list: list[NoReturn]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Does nothing: `call_soon_threadsafe` wakes a sleeping loop, and this one never sleeps."""

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """End the run with the exception, before time moves on."""
        if self._raised is None:
            error = context.get("exception")
            self._raised = error or RuntimeError(str(context["message"]))

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:  # type: ignore[override] # noqa: ARG002
        """Refused: how long a thread takes is not reproducible."""
        raise RuntimeError("threads have no place in virtual time: use Tasks.run_blocking")


def _deadlock_sentence(loop: asyncio.AbstractEventLoop) -> str:
    waiting = sorted(str(task.get_coro()) for task in asyncio.all_tasks(loop))
    return f"nothing is scheduled, and {len(waiting)} tasks wait: {'; '.join(waiting)}"
