"""Whether this broker is the controller: yes, with its reign; no; or not known yet.

Not known is what a candidate is until its claim is answered, an elected controller until it has
loaded the cluster, and one whose session is in doubt until it hears from ZooKeeper. Whoever asks
for the controller meanwhile waits: it may be asking the right broker, and has no better one to ask.
"""

from __future__ import annotations

import asyncio

from kdist.controller.reign import Reign


class Outlook:
    """Owner: the candidate. It is not known at first."""

    def __init__(self) -> None:
        self._reign: Reign | None = None
        self._known = asyncio.Event()

    @property
    def is_known(self) -> bool:
        """Whether nobody has to wait."""
        return self._known.is_set()

    def open(self) -> None:
        """It is not known any more."""
        self._reign = None
        self._known.clear()

    def settle(self, reign: Reign | None) -> None:
        """It is known: this broker reigns, or it is not the controller."""
        self._reign = reign
        self._known.set()

    async def reign(self, timeout_ms: float) -> Reign | None:
        """The reign, once it answers, or None; `TimeoutError` if it is not known in time.

        With 0 ms or less, what is known now.
        """
        async with asyncio.timeout(max(0, timeout_ms) / 1000):
            while not self._known.is_set():  # it may be open again by the time we are woken
                await self._known.wait()
        return self._reign
