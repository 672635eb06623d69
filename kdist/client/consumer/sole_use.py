"""Lets one thread at a time use a consumer, and refuses all others meanwhile.

Two threads that take records at once would be given some twice, and others not at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from kdist.errors import UserError


class SoleUse:
    """To be used as `check()`, then `with lock`.

    They are two steps, so that no signal handler runs between a call and its result. The thread
    inside may call again, as a listener does. Of two that pass `check` at once, one waits.
    """

    def __init__(self, check_caller: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self.is_ending = False  # `close` was called: others wait for the thread inside
        self._check_caller = check_caller

    def check(self) -> None:
        """`UserError` while another thread is inside, or whatever `check_caller` raises."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
            return
        self._check_caller()  # in a forked process the lock is never released
        if not self.is_ending:
            raise UserError("another thread is using the consumer: only one may at a time")
