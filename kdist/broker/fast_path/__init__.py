"""Fast paths: usual requests are recognised by their first bytes and answered without decoding.

A client repeats its requests: two produces to a partition, or two fetches in a session, differ in
few bytes. Once the general path has accepted a request, its fast path may `register` which bytes
the next one will share. The connection keeps that as its `context`, and `Dispatch` offers each of
its frames to that fast path first.

A fast path either answers byte for byte as the general path would, or declines the request. What
it has registered holds for one scope: a request that one subject may send says nothing about
another's, and a refused one is never registered. Neither is one of a client that has quotas; all
is forgotten when quotas or ACLs change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kdist.network.connection import Connection
from kdist.protocol.frame import RequestHeader
from kdist.security.subjects import Subject

Scope = tuple[Subject, str]
"""Who sends, and the name of the listener."""


class FastPath(Protocol):
    """The fast path of one API. Owner: the broker's `Service`."""

    def try_handle(self, frame: memoryview, registered: Registered, connection: Connection) -> bool:
        """Handle the request if it is usual: it is answered now, or when this tick ends.

        `frame` is any request, which may or may not be like the one that was `registered`.
        False means that nothing was done with it. Raises `DiskFailed`.
        """
        ...

    def register(
        self,
        frame: memoryview,
        header: RequestHeader,
        request: Any,
        response: Any,
        scope: Scope,
    ) -> Registered | None:
        """What to recognise requests like this one by; None if it is not usual or was refused.

        The general path has handled it. `response` is None if it was accepted and still waits.
        """
        ...

    def forget(self) -> None:
        """Recognise nothing of what is registered."""
        ...


class Queueing(Protocol):
    """A fast path that queues requests until the end of the tick."""

    @property
    def queue(self) -> Sequence[object]:
        """Those that wait."""
        ...

    def flush(self) -> None:
        """Carry them out now. Raises `DiskFailed`."""
        ...


class FastPaths(NamedTuple):
    """All fast paths of a broker, by API key, and the one that queues."""

    paths: Mapping[int, FastPath]
    queueing: Queueing

    def forget(self) -> None:
        """Recognise nothing of what is registered."""
        for path in self.paths.values():
            path.forget()


Registered = tuple[FastPath, int, dict[Any, Any]]
"""A connection's `context`: its fast path, where the bytes that requests share end, and that fast
path's templates for the connection's scope."""
