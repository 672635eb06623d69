"""The broker's event loop: asyncio's own, which also tells when it is about to wait.

That is the moment when all that was ready has been read: who gathers work does it then. `call_soon`
would do as well, but costs another round of the loop with another look at the sockets: 2 µs a
request at ten connections.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from functools import partial

_Events = list[tuple[selectors.SelectorKey, int]]


class _Selector(selectors.EpollSelector):
    """Runs what is wanted before it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[asyncio.Handle] = []

    def select(self, timeout: float | None = None) -> _Events:
        if self.wanted:
            handles, self.wanted = self.wanted, []
            for handle in handles:
                handle._run()  # as the loop would: an exception goes to its handler
            timeout = 0  # they may have called for something that the loop does not know of yet
        return super().select(timeout)


class TurnLoop(asyncio.SelectorEventLoop):
    """asyncio's loop for Unix, with `before_wait`."""

    def __init__(self) -> None:
        self._turn_selector = _Selector()
        super().__init__(self._turn_selector)

    def before_wait(self, callback: Callable[[], None]) -> Callable[[], None]:
        """A trigger: once called, `callback` runs before the loop waits next, or polls."""
        handle = asyncio.Handle(callback, (), self)

        def want() -> None:
            self._turn_selector.wanted.append(handle)

        return want


def ending_turns(
    loop: asyncio.AbstractEventLoop, callback: Callable[[], None]
) -> Callable[[], object]:
    """A trigger for `callback` once all is read that is ready now, on any loop."""
    if isinstance(loop, TurnLoop):
        return loop.before_wait(callback)
    # In the loop's next round, and ahead of what that round finds ready to be read.
    return partial(loop.call_soon, callback)
