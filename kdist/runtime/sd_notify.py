"""Notifying systemd that a service is ready, what its status is, and that it is alive.

Source: sd_notify(3). Without `NOTIFY_SOCKET` in the environment nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

logger = logging.getLogger(__name__)


class ServiceManager:
    """The notification socket of systemd, if this process was given one.

    The sending socket is opened at the start, so that a process that later runs out of descriptors
    can still feed its watchdog.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path  # @: an abstract address
        self._socket: socket.socket | None = None
        if path:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environment.get("WATCHDOG_USEC", "") if is_ours else ""
        self.watchdog_ms = int(usec) // 1000 if usec.isdigit() else None

    def feed_watchdog(self, loop: asyncio.AbstractEventLoop) -> None:
        """Keep telling systemd that the loop runs: it kills a service whose loop hangs."""
        if self.watchdog_ms is not None:
            self.tell("WATCHDOG=1")
            loop.call_later(self.watchdog_ms / 2000, self.feed_watchdog, loop)

    def tell(self, state: str) -> None:
        """Send lines of `NAME=value`: READY=1, STATUS=..., STOPPING=1, WATCHDOG=1."""
        if self._socket is None:
            return
        try:
            self._socket.sendto(state.encode(), self._address)
        except OSError as error:
            logger.warning("cannot send %r to systemd: %s", state, error)
