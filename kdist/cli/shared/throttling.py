"""Says once on standard error that a broker throttles the command: else it only seems slow."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def throttling_said() -> Iterator[None]:
    """The first answer within the block that tells of a used-up quota is said."""
    from kdist.network import client

    handler, level = _Once(client.THROTTLED), client.logger.level
    client.logger.addHandler(handler)
    client.logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        client.logger.setLevel(level)
        client.logger.removeHandler(handler)


class _Once(logging.Handler):
    """Prints the first of the messages of one form."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form
        self._is_said = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == self._form and not self._is_said:
            self._is_said = True
            begin = "\r\x1b[K" if sys.stderr.isatty() else ""  # where progress may be shown
            click.echo(f"{begin}kdist: {record.getMessage()}", err=True)
