"""What is sent: a message, and a set of them for one topic.

The first design's names. A `Message` here is a record that has no offset yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kdist.records.record import Headers


class Message(NamedTuple):
    """A value and what may go with it. `timestamp` is ms since the epoch, None for now.

    >>> Message(b"clicked", key=b"user-7")
    Message(value=b'clicked', key=b'user-7', headers=(), partition=None, timestamp=None)
    """

    value: Any
    key: Any = None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None


class MessageSet(list[Message]):
    """Messages that are sent with one call; what is no `Message` is taken for a value.

    >>> MessageSet([b"clicked", Message(b"scrolled", key=b"user-7")])[0].value
    b'clicked'
    """

    def __init__(self, messages: Iterable[Any] = ()) -> None:
        super().__init__(each if isinstance(each, Message) else Message(each) for each in messages)
