"""Fast paths: usual requests are recognised by their first bytes and answered without decoding.

A client repeats its requests: two produces to a partition, or two fetches in a session, differ in
few bytes. From a request on the general path, through codec and handler, a fast path `learn`s which
bytes the next one will share. The connection keeps that as its `context`, and `Dispatch` offers
each of its frames to that fast path first.

A fast path either answers byte for byte as the general path would, or declines the request. There
are two: `usual_produce.py` and `usual_fetch.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from kdist.network.connection import Connection
from kdist.protocol.headers import RequestHeader


class UsualPath(Protocol):
    """The fast path of one API. Owner: the broker's `Service`."""

    def take(self, frame: memoryview, known_end: int, connection: Connection) -> bool:
        """Take the request if it is usual: it is answered now, or when this tick of the loop ends.

        `frame` is any request; its bytes up to `known_end` may or may not match a learned one.
        False means that nothing was done with it. Raises `DiskFailed`.
        """
        ...

    def learn(self, frame: memoryview, header: RequestHeader, request: Any) -> int | None:
        """Return where the bytes shared by requests like this one end; None if it is not usual.

        `request` is decoded from `frame`, and takes the general path after this.
        """
        ...


class UsualPaths(NamedTuple):
    """All fast paths of a broker, by API key."""

    paths: Mapping[int, UsualPath]
    settle: Callable[[], None]
    """Carries out now what was taken and queued for the end of the tick. Raises `DiskFailed`."""


Context = tuple[UsualPath, int]
"""A connection's `context` after a usual request: the fast path, and what `learn` returned."""
