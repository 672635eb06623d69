"""A member of a group: its identity, its protocols and timeouts, and its assignment."""

from __future__ import annotations

import dataclasses
from collections.abc import Container
from typing import NamedTuple

from kdist.runtime.tasks import Timer

UNKNOWN_MEMBER_ID = ""  # of a client that has no id yet, or commits without being a member

Protocols = tuple[tuple[str, bytes], ...]
"""The assignors a member supports, in order of preference, each with its metadata."""


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
    # Its first join is not answered yet: it does not know its member id, and cannot heartbeat.
    is_new: bool = False
    session: Timer | None = None

    @property
    def is_static(self) -> bool:
        """Whether the member keeps its place across a restart (KIP-345)."""
        return self.instance_id is not None

    def metadata(self, protocol: str) -> bytes:
        """The member's metadata for `protocol`, which it must support."""
        return next(metadata for name, metadata in self.protocols if name == protocol)

    def vote(self, candidates: Container[str]) -> str:
        """The candidate that the member prefers; it must support at least one."""
        return next(name for name, _metadata in self.protocols if name in candidates)

    def end_session(self) -> None:
        if self.session is not None:
            self.session.cancel()
            self.session = None
