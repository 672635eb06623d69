"""Work deferred to the end of a turn of the event loop, whether it received anything or not."""

from __future__ import annotations

from collections.abc import Callable

from kdist.network.turn import Turn
from kdist.network.world import Network
from kdist.runtime.turn_loop import ending_turns


class TurnEnd:
    """Owner: the broker. `schedule` is passed to `Replicas`."""

    def __init__(self, network: Network) -> None:
        self._turn: Turn = network.turn
        self._turn.at_end(self._run)
        # The network's turns begin with something received, but timers and threads bring work too.
        self._want_end = ending_turns(network.loop, self._run)
        self._first: list[Callable[[], None]] = []
        self._waiting: list[Callable[[], None]] = []

    def always(self, callback: Callable[[], None]) -> None:
        """Call it at every turn's end, before scheduled callbacks; not in turns without work."""
        self._first.append(callback)

    def schedule(self, callback: Callable[[], None]) -> None:
        """Call it once, when this turn ends."""
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
        self._turn.remove(self._run)
        self._waiting.clear()
