"""The diagnostic stream: one line per event on standard error, which systemd sends to the journal.

Modules use `logger = logging.getLogger(__name__)`; only a process's start calls `set_up`. For the
journal a line starts with its priority as in sd-daemon(3), and has no time, since the journal adds
one. Elsewhere it starts with the time, in UTC, and the level.
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
    """One line per event: line ends inside, also those of a traceback, are escaped as `\\n`."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\r", "\\r").replace("\n", "\\n")


class JournalFormatter(LineFormatter):
    """The line, prefixed with its syslog priority."""

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
    """Whether `stream` goes to the journal: `JOURNAL_STREAM` has its device and inode.

    Source: systemd.exec(5). The variable alone does not tell: a child of a service inherits it, but
    its standard error may be redirected.
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
