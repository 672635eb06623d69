"""The request handlers: one file for each API, or for a few that share everything.

Here is what they need of a request.
"""

from __future__ import annotations

from typing import Any, Protocol

from kdist.network.connection import Connection


class Call(Protocol):
    """A request; it is answered exactly once. `kdist.broker.dispatch.GeneralCall` is one."""

    @property
    def version(self) -> int: ...

    @property
    def listener(self) -> str:
        """The name of the listener that the request came in on."""
        ...

    @property
    def connection(self) -> Connection:
        """Whose end cancels the request."""
        ...

    def answer(self, response: Any, /) -> None:
        """Send the response; its file slices are released once each, sent or not.

        None means that there is none, as for a produce with acks=0.
        """
        ...

    def crash(self, error: BaseException, /) -> None:
        """Instead of `answer`, if the request met a bug or the disk has failed."""
        ...


class Charged(Protocol):
    """A request for partitions to be created or deleted, for which there may be a quota."""

    @property
    def version(self) -> int: ...

    def take(self, partitions: int, *, is_strict: bool) -> bool:
        """Charge so many; whether they may be created or deleted. Below 0, give them back."""
        ...
