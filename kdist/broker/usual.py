"""The short way of usual requests: recognised by their first bytes, answered without decoding.

A client asks the same thing again and again: between two produces to a partition, or two fetches of
a session, few bytes differ. A path `learn`s from a request that went the long way, through codec
and handler, which part of it the next will share; the connection remembers that as its `context`,
and `Dispatch` offers the path each frame that comes on it, before anything else.

A path answers exactly as the long way does, or leaves a request alone: `usual_produce.py`,
`usual_fetch.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from kdist.network.connection import Connection
from kdist.protocol.headers import RequestHeader


class UsualPath(Protocol):
    """The short way of one API's requests. Owner: the broker's `Service`."""

    def take(self, frame: memoryview, known_end: int, connection: Connection) -> bool:
        """Whether the request is usual, and is answered now or when this turn of the loop ends.

        `frame` is any request, up to `known_end` like one that was learned, or not. If it is not
        taken, nothing was done about it. Raises `DiskFailed`.
        """
        ...

    def learn(self, frame: memoryview, header: RequestHeader, request: Any) -> int | None:
        """Where the bytes end that requests like this one share; None if it is not usual.

        `request` is decoded from `frame`, and goes the long way after this.
        """
        ...


class UsualPaths(NamedTuple):
    """All short ways of a broker, by API key."""

    paths: Mapping[int, UsualPath]
    settle: Callable[[], None]
    """Does what was taken and waits for the end of the turn. Raises `DiskFailed`."""


Context = tuple[UsualPath, int]
"""A connection's `context` once a usual request came on it: the path, and the known end."""
