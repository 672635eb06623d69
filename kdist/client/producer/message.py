"""A message to send: a record that has no offset yet."""

from __future__ import annotations

from typing import Any, NamedTuple

from kdist.records.record import Headers


class Message(NamedTuple):
    """A record to send; only the value is required. `timestamp`: ms since the epoch, None for now.

    >>> Message(b"clicked", key=b"user-7")
    Message(value=b'clicked', key=b'user-7', headers=(), partition=None, timestamp=None)
    """

    value: Any
    key: Any = None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None
