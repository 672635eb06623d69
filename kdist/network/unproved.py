"""Connections of a listener whose peers have not proved yet who they are: few, and not for long.

From being accepted until TLS's handshake and SASL's exchange are over, a peer costs memory and a
descriptor, and nobody knows whose they are. So they are counted apart, in all and by address, and
at a bound the oldest is ended: who really wants to prove something is faster than that.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from kdist.metrics.broker import NetworkMetrics


class UnprovedLimits(NamedTuple):
    """How many there may be on a listener, and from one address, and for how long."""

    most: int = 1000
    most_per_host: int = 100
    time_ms: int = 10_000


class Peer(Protocol):
    """What is known of a connection: where it comes from."""

    host: str

    def abort(self) -> None:
        """End it now."""
        ...


class Unproved:
    """Owner: the listener."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limits: UnprovedLimits, metrics: NetworkMetrics
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._metrics = metrics
        self._until_s: dict[Peer, float] = {}  # the oldest first
        self._of_host: dict[str, dict[Peer, None]] = {}  # the same
        self._timer: asyncio.TimerHandle | None = None

    def add(self, peer: Peer) -> None:
        """One was accepted."""
        limits, of_host = self._limits, self._of_host.get(peer.host, {})
        if len(of_host) >= limits.most_per_host:
            self._end(next(iter(of_host)))
        elif len(self._until_s) >= limits.most:
            self._end(next(iter(self._until_s)))
        self._until_s[peer] = self._loop.time() + limits.time_ms / 1000
        self._of_host.setdefault(peer.host, {})[peer] = None
        self._metrics.unauthenticated_connections += 1
        if self._timer is None:
            self._await_oldest()

    def remove(self, peer: Peer) -> None:
        """It has proved who it is, or is gone. It may have been removed before."""
        if self._until_s.pop(peer, None) is None:
            return
        of_host = self._of_host[peer.host]
        del of_host[peer]
        if not of_host:
            del self._of_host[peer.host]
        self._metrics.unauthenticated_connections -= 1
        if not self._until_s and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, peer: Peer) -> None:
        self._metrics.unauthenticated_ended_connections += 1
        self.remove(peer)
        peer.abort()

    def _await_oldest(self) -> None:
        until_s = next(iter(self._until_s.values()))
        self._timer = self._loop.call_at(until_s, self._end_late)

    def _end_late(self) -> None:
        """Time is up for the oldest, at least."""
        self._timer = None
        now_s = self._loop.time()
        for peer in [peer for peer, until_s in self._until_s.items() if until_s <= now_s]:
            self._end(peer)
        if self._until_s:
            self._await_oldest()
