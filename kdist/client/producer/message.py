"""A message to send, and a set of messages for one topic.

These are the first design's names: a `Message` here is a record that has no offset yet.
"""

from __future__ import annotations

from collections.abc import Iterable
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


class MessageSet(list[Message]):
    """Messages to send with one call; an item that is not a `Message` is taken as a value.

    >>> MessageSet([b"clicked", Message(b"scrolled", key=b"user-7")])[0].value
    b'clicked'
    """

    def __init__(self, messages: Iterable[Any] = ()) -> None:
        super().__init__(each if isinstance(each, Message) else Message(each) for each in messages)
