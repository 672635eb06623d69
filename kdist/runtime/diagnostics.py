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
from typing import ClassVar, TextIO

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


class LogLevels:
    """The levels of a process's loggers, in Kafka's names, while it runs (KIP-412).

    A package counts as a logger. One that has no level of its own has that of the package above.
    """

    ROOT = "root"
    NAMES: ClassVar[Mapping[str, int]] = {
        "FATAL": logging.CRITICAL,
        "ERROR": logging.ERROR,
        "WARN": logging.WARNING,
        "INFO": logging.INFO,
        "DEBUG": logging.DEBUG,
        "TRACE": 5,
    }

    def __init__(self, root: logging.Logger | None = None) -> None:
        self._root = logging.getLogger() if root is None else root

    def all(self) -> dict[str, str]:
        """The level of each logger."""
        named = sorted(self._root.manager.loggerDict)
        return {self.ROOT: self._of(self._root)} | {each: self._of_name(each) for each in named}

    def set(self, name: str, level: str) -> None:
        """Give a logger one of the levels in `NAMES`."""
        self._logger(name).setLevel(self.NAMES[level])

    def unset(self, name: str) -> None:
        """Have a logger follow the package above."""
        assert name != self.ROOT, "nothing is above it"
        self._logger(name).setLevel(logging.NOTSET)

    def _logger(self, name: str) -> logging.Logger:
        return self._root if name == self.ROOT else self._root.manager.getLogger(name)

    def _of_name(self, name: str) -> str:
        """Without making a package without events of its own a logger."""
        found: object = self._root.manager.loggerDict[name]
        while not isinstance(found, logging.Logger):
            name, _, _ = name.rpartition(".")
            found = self._root.manager.loggerDict.get(name, None if name else self._root)
        return self._of(found)

    def _of(self, logger: logging.Logger) -> str:
        level = logger.getEffectiveLevel()
        return next((name for name, least in self.NAMES.items() if level >= least), "TRACE")
