"""Work deferred to the end of a tick of the event loop, whether it received anything or not."""

from __future__ import annotations

from collections.abc import Callable

from kdist.network.network import Network
from kdist.network.tick import Tick
from kdist.runtime.tick_loop import ending_ticks


class TickEnd:
    """Owner: the broker. `schedule` is passed to `Replicas`."""

    def __init__(self, network: Network) -> None:
        self._tick: Tick = network.tick
        self._tick.at_end(self._run)
        # The network's ticks begin with something received, but timers and threads bring work too.
        self._want_end = ending_ticks(network.loop, self._run)
        self._first: list[Callable[[], None]] = []
        self._waiting: list[Callable[[], None]] = []

    def always(self, callback: Callable[[], None]) -> None:
        """Call it at every tick's end, before scheduled callbacks; not in ticks without work."""
        self._first.append(callback)

    def schedule(self, callback: Callable[[], None]) -> None:
        """Call it once, when this tick ends."""
        if not self._waiting:
            self._want_end()
        self._waiting.append(callback)

    def _run(self) -> None:
        for callback in self._first:
            callback()
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

    def close(self) -> None:
        """Schedule nothing more."""
        self._tick.remove(self._run)
        self._waiting.clear()
