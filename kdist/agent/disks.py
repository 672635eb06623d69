"""Asks smartctl for the health of every disk. A disk may take seconds to answer, or never do.

Disks are asked side by side, as one that hangs must not keep the others' health from being known.
That it does not answer is the best sign of a hang that there is, and is exported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kdist.agent.smart import DiskHealth, read_health, read_scan
from kdist.runtime.clock import Clock

logger = logging.getLogger(__name__)

_TIMEOUT_MS = 30_000
_AT_ONCE = 4
_WHAT = ("--info", "--health", "--attributes", "--nocheck=standby")  # wakes no sleeping disk

Run = Callable[[Sequence[str], float], Awaitable[bytes]]
"""Runs a command for so many milliseconds; returns its output, or raises `TimeoutError`."""


class SeenDisk(NamedTuple):
    """A disk's last health, None without SMART, and whether it still answers."""

    device: str
    health: DiskHealth | None
    answer_age_s: float
    timeouts: int = 0


@dataclass
class _Asked:
    """What is known of a disk: also when it last answered, or was found."""

    answered_ns: int
    health: DiskHealth | None = None
    timeouts: int = 0


class AskedDisks:
    """Owner: the agent."""

    def __init__(self, smartctl: str, run: Run, clock: Clock) -> None:
        self._by_device: dict[str, _Asked] = {}
        self._smartctl = smartctl
        self._run = run
        self._clock = clock
        self._places = asyncio.Semaphore(_AT_ONCE)

    def seen(self) -> list[SeenDisk]:
        """Every disk as it is known now."""
        now_ns = self._clock.monotonic_ns()
        return [
            SeenDisk(device, each.health, (now_ns - each.answered_ns) / 1e9, each.timeouts)
            for device, each in self._by_device.items()
        ]

    async def ask(self) -> None:
        """Look for disks, and ask all of them. One that does not answer keeps its last health."""
        try:
            scan = await self._run((self._smartctl, "--json", "--scan"), _TIMEOUT_MS)
        except TimeoutError:
            logger.warning("disks cannot be looked for: smartctl does not answer")
        else:
            now_ns = self._clock.monotonic_ns()
            known = self._by_device
            self._by_device = {d: known.get(d) or _Asked(now_ns) for d in read_scan(scan)}
        await asyncio.gather(*map(self._ask, self._by_device))

    async def _ask(self, device: str) -> None:
        disk = self._by_device[device]
        try:
            async with self._places:
                output = await self._run((self._smartctl, "--json", *_WHAT, device), _TIMEOUT_MS)
        except TimeoutError:
            disk.timeouts += 1
            logger.warning("%s does not answer smartctl", device)
            return
        disk.answered_ns = self._clock.monotonic_ns()
        disk.health = read_health(device, output)
        if disk.health is None:
            logger.debug("%s reports no SMART health", device)
