"""For how long the lock of whatever stops brokers has been held, as the controller sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import nan

from kdist.metrics.controller import ControllerMetrics
from kdist.runtime.clock import Clock
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.cluster_values import LockHolder
from kdist.zk.errors import ZooKeeperError

logger = logging.getLogger(__name__)


class RollLockWatch:
    """Owner: the broker. It gives the controller's metrics their readings of the lock."""

    def __init__(
        self,
        zk: ZooKeeper,
        clock: Clock,
        is_controller: Callable[[], bool],
        metrics: ControllerMetrics,
    ) -> None:
        self._zk = zk
        self._clock = clock
        self._is_controller = is_controller
        self._is_known = False
        self._holder: LockHolder | None = None
        metrics.roll_lock_seconds = self._held_s
        metrics.roll_lock_overdue_seconds = self._overdue_s

    async def look(self) -> None:
        """Read who holds the lock, if this broker is the controller."""
        self._is_known = False
        if self._is_controller():
            try:
                self._holder = await znodes.LOCK.read(self._zk, znodes.ROLL_LOCK)
                self._is_known = True
            except ZooKeeperError as error:
                logger.debug("the lock of rolls cannot be read: %s", error)

    def _held_s(self) -> float:
        return self._since_s(None if self._holder is None else self._holder.timestamp_ms)

    def _overdue_s(self) -> float:
        return self._since_s(None if self._holder is None else self._holder.until_ms)

    def _since_s(self, time_ms: int | None) -> float:
        """Seconds since then; 0 before then, or if there is no such time."""
        if not self._is_known:
            return nan
        return 0.0 if time_ms is None else max(0, self._clock.now_ms() - time_ms) / 1000
