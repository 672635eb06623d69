"""Long work as a generator of steps, so that the event loop can do other work in between.

`Steps` yields wherever it may be paused: None to give way, or blocking work that a thread may do,
since it touches nothing in use elsewhere. The generator's return value is the result. Abandoning it
with `close` leaves nothing behind that a kill of the process at that point would not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")

Work = Callable[[], None]
Steps = Generator[Work | None, None, T]

_STEP_BYTES = 4 << 20  # some 5 ms from the page cache, 20 ms from a disk
_LOOK_BYTES = 4 << 10  # the fixed cost of looking at batches, expressed in bytes


def run_steps(steps: Steps[T]) -> T:
    """Run all steps without a pause; return the result."""
    while True:
        try:
            work = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if work is not None:
            work()


class Pace:
    """Tells a walk over batches when to pause."""

    def __init__(self) -> None:
        self._left_bytes = _STEP_BYTES

    def is_over(self, size_bytes: int) -> bool:
        """Count a look at this many bytes; return whether the step is complete."""
        self._left_bytes -= size_bytes + _LOOK_BYTES
        if self._left_bytes > 0:
            return False
        self._left_bytes = _STEP_BYTES
        return True
