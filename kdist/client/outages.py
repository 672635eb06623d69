"""Logs what a client loses, and when it is back: one line for each, and none for a retry.

Clients retry for as long as they are told to, so nobody else would say why nothing moves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

CLUSTER = "the cluster"


class Outages:
    """What is lost at the moment, by name: single brokers, or all of them. Owner: the loop."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._since_s: dict[str, float] = {}

    def lost(self, name: str, why: str) -> None:
        """It cannot be reached. Of the cluster's brokers nothing more is said once all are lost."""
        if name in self._since_s or CLUSTER in self._since_s:
            return
        logger.warning("%s is lost: %s", name, why)
        since_s = self._now_s()
        if name == CLUSTER:
            since_s = min((since_s, *self._since_s.values()))
            self._since_s.clear()
        self._since_s[name] = since_s

    def back(self, name: str) -> None:
        """It answers, which is only said of what was lost."""
        since_s = self._since_s.pop(name, None)
        if since_s is not None:
            logger.warning("%s is back after %.0f s", name, self._now_s() - since_s)
