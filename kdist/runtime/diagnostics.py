"""The diagnostic stream: one line per event on standard error, which systemd takes to the journal.

Modules ask for `logging.getLogger(__name__)` and call it `logger`; only a process's start calls
`set_up`. Under the journal a line starts with its priority in the form of sd-daemon(3), and has no
time, as the journal keeps its own. Elsewhere it starts with the time, in UTC, and the level.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import TextIO

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

_PRIORITIES = {"CRITICAL": 2, "ERROR": 3, "WARNING": 4, "INFO": 6, "DEBUG": 7}  # syslog(3)


class LineFormatter(logging.Formatter):
    """One event, one line: line ends inside are written as `\\n`, a traceback's too."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\r", "\\r").replace("\n", "\\n")


class JournalFormatter(LineFormatter):
    """The line with its syslog priority before it."""

    def format(self, record: logging.LogRecord) -> str:
        return f"<{_PRIORITIES.get(record.levelname, 6)}>{super().format(record)}"


def set_up(level: str, stream: TextIO, environment: Mapping[str, str]) -> None:
    """Send events of `level` (one of `LEVELS`) and above to `stream`, and to nowhere else."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_formatter(is_journal(stream, environment)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def is_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether the journal reads `stream`: `JOURNAL_STREAM` names its device and inode.

    Source: systemd.exec(5). A child of a service inherits the variable, and perhaps another stream.
    """
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # a stream in memory has no descriptor
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _formatter(for_journal: bool) -> logging.Formatter:
    if for_journal:
        return JournalFormatter("%(name)s: %(message)s")
    formatter = LineFormatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    return formatter
