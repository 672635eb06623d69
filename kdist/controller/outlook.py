"""Whether this broker is the controller: yes, with its reign; no; or not known yet.

It is not known until a candidate's claim is answered, until an elected controller has loaded the
cluster, and while a controller whose session is in doubt has not heard from ZooKeeper. Callers wait
meanwhile: this may be the right broker, and they know of no better one to ask.
"""

from __future__ import annotations

import asyncio

from kdist.controller.reign import Reign


class Outlook:
    """Owner: the candidate. Not known at first."""

    def __init__(self) -> None:
        self._reign: Reign | None = None
        self._known = asyncio.Event()

    @property
    def is_known(self) -> bool:
        """Whether `reign` answers without waiting."""
        return self._known.is_set()

    def open(self) -> None:
        """Forget the answer: callers wait until the next `settle`."""
        self._reign = None
        self._known.clear()

    def settle(self, reign: Reign | None) -> None:
        """Set the answer: this broker's reign, or None if it is not the controller."""
        self._reign = reign
        self._known.set()

    async def reign(self, timeout_ms: float) -> Reign | None:
        """The reign, or None if this is not the controller; `TimeoutError` if not known in time.

        With 0 ms or less it does not wait.
        """
        async with asyncio.timeout(max(0, timeout_ms) / 1000):
            while not self._known.is_set():  # it may be open again by the time we are woken
                await self._known.wait()
        return self._reign
