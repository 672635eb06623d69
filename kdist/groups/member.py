"""A member of a group: who it is, what it can do, and what it was given."""

from __future__ import annotations

import dataclasses
from collections.abc import Container
from typing import NamedTuple

from kdist.runtime.tasks import Timer

UNKNOWN_MEMBER_ID = ""  # how a client that has none yet joins, or commits from outside

Protocols = tuple[tuple[str, bytes], ...]
"""The assignors a member can use, the one it likes best first, each with its metadata."""


class Caller(NamedTuple):
    """Where a request comes from: its version, its header's client id, and the client's address.

    Apache Kafka keeps and shows the address as "/10.0.0.7", and so do its tools.
    """

    version: int
    client_id: str
    client_host: str


@dataclasses.dataclass(slots=True, eq=False)
class Member:
    """One member. Owned by its group; `session` is the timer that ends its membership."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignment: bytes = b""
    # Joined and not yet answered for the first time: it knows no member id, so cannot heartbeat.
    is_new: bool = False
    session: Timer | None = None

    @property
    def is_static(self) -> bool:
        """Whether the member keeps its place over a restart (KIP-345)."""
        return self.instance_id is not None

    def metadata(self, protocol: str) -> bytes:
        """What the member said for `protocol`, which it must support."""
        return next(metadata for name, metadata in self.protocols if name == protocol)

    def vote(self, candidates: Container[str]) -> str:
        """The candidate that the member likes best; it must support one."""
        return next(name for name, _metadata in self.protocols if name in candidates)

    def end_session(self) -> None:
        """Stop the timer."""
        if self.session is not None:
            self.session.cancel()
            self.session = None
