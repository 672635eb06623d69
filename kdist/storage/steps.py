"""How far a walk over a log's batches goes in one step (`runtime.steps`)."""

from __future__ import annotations

from kdist.runtime.steps import Steps as Steps
from kdist.runtime.steps import Work as Work
from kdist.runtime.steps import run_steps as run_steps

_STEP_BYTES = 4 << 20  # some 5 ms from the page cache, 20 ms from a disk
_LOOK_BYTES = 4 << 10  # the fixed cost of looking at batches, expressed in bytes


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
