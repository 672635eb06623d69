"""Long work in steps, so that other things can be done in between.

`Steps` is a generator that yields where it may be left for a while: None to give way, or work that
blocks and touches nothing that anyone else uses meanwhile. What it returns is its result. Left for
good, by `close`, it has done nothing that a process killed there would not have done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")

Work = Callable[[], None]
Steps = Generator[Work | None, None, T]

_STEP_BYTES = 4 << 20  # some 5 ms from the page cache, 20 ms from a disk
_LOOK_BYTES = 4 << 10  # what a look at one or more batches costs besides their bytes, in bytes


def run_steps(steps: Steps[T]) -> T:
    """All steps, one right after the other; the result."""
    while True:
        try:
            work = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if work is not None:
            work()


class Pace:
    """Tells a walk over batches when to give way."""

    def __init__(self) -> None:
        self._left_bytes = _STEP_BYTES

    def is_over(self, size_bytes: int) -> bool:
        """Count a look at so many bytes; whether a step is through."""
        self._left_bytes -= size_bytes + _LOOK_BYTES
        if self._left_bytes > 0:
            return False
        self._left_bytes = _STEP_BYTES
        return True
