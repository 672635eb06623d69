"""A mirror as a process: real clock and network, signals, systemd."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import Any

from kdist.config.mirror import MirrorConfig
from kdist.errors import KdistError
from kdist.mirror.flow import MirrorContext
from kdist.mirror.mirror import Mirror
from kdist.network.network import AsyncioNetwork
from kdist.runtime.clock import SystemClock
from kdist.runtime.process import system_rng
from kdist.runtime.sd_notify import ServiceManager


def run_mirror(config: MirrorConfig, environment: Mapping[str, str]) -> None:
    """Run a mirror until SIGTERM or SIGINT. Raises the `KdistError`, or the bug, that ended it."""
    asyncio.run(_run(config, ServiceManager(environment)))


async def _run(config: MirrorConfig, manager: ServiceManager) -> None:
    loop = asyncio.get_running_loop()
    mirror = Mirror(config, MirrorContext(AsyncioNetwork(loop), SystemClock(), system_rng()))
    mirror.exposition.add_process()
    stop = asyncio.Event()
    bugs: list[Exception] = []

    def hear_bug(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the mirror after an uncaught bug; not after an uncaught error of a connection."""
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, KdistError | OSError):
            bugs.append(error)
            stop.set()

    def hear() -> None:
        manager.tell("STOPPING=1")
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hear)
    loop.set_exception_handler(hear_bug)
    manager.feed_watchdog(loop)
    await mirror.run(stop, lambda: manager.tell("READY=1"))
    if bugs:
        raise bugs[0]
