"""One direction of a connection in memory, between a client and a server or between servers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context

_RESEND_S = 0.2


class Link:
    """One direction of a connection: messages arrive in order, each after a delay.

    `context` is the receiver's, so that a message belongs to the receiver's process and not to the
    sender's, which may be killed. What `is_stopped` holds back is sent again until it passes, as
    TCP does.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: Context,
        delay_ms: Callable[[], float],
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop = loop
        self._context = context
        self._delay_ms = delay_ms
        self._is_stopped = is_stopped
        self._messages: deque[Callable[[], None]] = deque()
        self._last_due_s = 0.0
        self.is_cut = False

    def send(self, message: Callable[[], None]) -> None:
        """Deliver the message after a delay, unless the link is cut first."""
        if self.is_cut:
            return
        loop = self._loop
        self._messages.append(message)
        self._last_due_s = max(self._last_due_s, loop.time() + self._delay_ms() / 1000)
        # Timers due at the same time may fire in any order, so each delivers the oldest message.
        loop.call_at(self._last_due_s, self._deliver, context=self._context)

    def _deliver(self) -> None:
        if self._messages and self._is_stopped():
            self._loop.call_later(_RESEND_S, self._deliver, context=self._context)
        elif self._messages:
            self._messages.popleft()()

    def cut(self) -> None:
        """Lose all messages in transit."""
        self.is_cut = True
        self._messages.clear()
