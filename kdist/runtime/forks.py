"""What was forked: a process with all of another one's memory, and none of its other threads.

So what waits there for such a thread, or for a lock that one held, waits forever.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """What must know that it is a copy, in a process that was forked."""

    def forked(self) -> None:
        """In the new process, before anything else is done there. Takes no lock."""


_TOLD: WeakSet[Forked] = WeakSet()


def tell_when_forked(who: Forked) -> None:
    """From now on have `who`, as long as it lives, told in each process that is forked."""
    _TOLD.add(who)


def _tell() -> None:
    for each in list(_TOLD):
        each.forked()


os.register_at_fork(after_in_child=_tell)
