"""What a service tells systemd: that it is ready, its status, and that it is alive.

Source: sd_notify(3). Without `NOTIFY_SOCKET` in the environment nobody listens, and nothing is
sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

logger = logging.getLogger(__name__)


class ServiceManager:
    """The datagram socket that systemd gave this process, if it did.

    The way there is open from the start: who has no descriptor left for another is alive as well.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path  # an abstract one
        self._way: socket.socket | None = None
        if path:
            self._way = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environment.get("WATCHDOG_USEC", "") if is_ours else ""
        self.watchdog_ms = int(usec) // 1000 if usec.isdigit() else None

    def feed_watchdog(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on tell that the loop runs: systemd ends a service whose loop stands still."""
        if self.watchdog_ms is not None:
            self.tell("WATCHDOG=1")
            loop.call_later(self.watchdog_ms / 2000, self.feed_watchdog, loop)

    def tell(self, state: str) -> None:
        """Send lines of `NAME=value`: READY=1, STATUS=..., STOPPING=1, WATCHDOG=1."""
        if self._way is None:
            return
        try:
            self._way.sendto(state.encode(), self._address)
        except OSError as error:
            logger.warning("systemd was not told %r: %s", state, error)
