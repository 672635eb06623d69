"""Asks smartctl for the health of every disk. A disk may take seconds to answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from kdist.agent.smart import DiskHealth, read_health, read_scan

logger = logging.getLogger(__name__)

_TIMEOUT_MS = 30_000
_WHAT = ("--info", "--health", "--attributes", "--nocheck=standby")  # wakes no sleeping disk

Run = Callable[[Sequence[str], float], Awaitable[bytes]]


async def ask_disks(smartctl: str, run: Run) -> tuple[DiskHealth, ...]:
    """The health of every disk with SMART, asked one after another."""
    found: list[DiskHealth] = []
    for device in read_scan(await run((smartctl, "--json", "--scan"), _TIMEOUT_MS)):
        output = await run((smartctl, "--json", *_WHAT, device), _TIMEOUT_MS)
        if (health := read_health(device, output)) is None:
            logger.debug("%s reports no SMART health", device)
        else:
            found.append(health)
    return tuple(found)
