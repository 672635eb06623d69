"""Limits each of kazoo's log lines to one a minute: it logs every connection attempt, one a second.

With ZooKeeper down for an hour, that put 7,000 lines into a broker's log. `session.py` logs when a
session's connection is lost and when it is back.
"""

from __future__ import annotations

import logging

_SILENT_S = 60
_LINES_MAX = 100  # remembered; lines differ by server, and by why it did not answer


class OncePerMinute(logging.Filter):
    """Drops a line that was already logged in the last minute."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line, now_s = record.getMessage(), record.created
        logged_s = self._logged_s.get(line)
        if logged_s is not None and 0 <= now_s - logged_s < _SILENT_S:  # the clock may be set back
            return False
        if len(self._logged_s) >= _LINES_MAX:
            self._logged_s.clear()
        self._logged_s[line] = now_s
        return True
