"""What kazoo logs, once a minute each: it says of every try, one a second, how it went.

While ZooKeeper was down for an hour, a broker's log had 7,000 lines of that. `session.py` logs when
a session is lost, and when it is found again.
"""

from __future__ import annotations

import logging

_SILENT_S = 60
_LINES_MAX = 100  # that are remembered: they name servers, and why one did not answer


class OncePerMinute(logging.Filter):
    """Lets a line through that was not let through in the last minute."""

    def __init__(self) -> None:
        super().__init__()
        self._told_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line, now_s = record.getMessage(), record.created
        told_s = self._told_s.get(line)
        if told_s is not None and 0 <= now_s - told_s < _SILENT_S:  # the clock may be set back
            return False
        if len(self._told_s) >= _LINES_MAX:
            self._told_s.clear()
        self._told_s[line] = now_s
        return True
