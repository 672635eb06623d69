"""Passing trouble: logged once when it begins and once when it is over, not at every try."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class Trouble:
    """Of one thing that is tried again for as long as it takes. Owner: who tries."""

    def __init__(self, about: str) -> None:
        self.said = ""  # while it lasts
        self._about = about

    def begin(self, error: Exception) -> None:
        """It failed, for the first time or again."""
        if not self.said:
            logger.warning("%s: %s; trying on", self._about, error)
        self.said = str(error)

    def end(self) -> None:
        """It works."""
        if self.said:
            logger.info("%s: goes on", self._about)
        self.said = ""
