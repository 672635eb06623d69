"""Messages between brokers that are held back, to arrive in one tick with another, in either order.

What a broker is told by its leader, by the controller, and in answer to its proposals comes by
different connections. Each is right when it is sent; two that meet may not be any more.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from kdist.protocol import alter_partition, fetch, leader_and_isr, stop_replica, update_metadata
from kdist.testing.simulated_transport import SimulatedTransport
from tests.simulator.cluster import PORT
from tests.simulator.record import Trace

FETCHED, JUDGED = "an answer to Fetch", "an answer to AlterPartition"
LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA = "LeaderAndIsr", "StopReplica", "UpdateMetadata"
ALTER_PARTITION = "AlterPartition"
KINDS = (FETCHED, JUDGED, LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA)
_REQUESTS = {
    leader_and_isr.API.key: LEADER_AND_ISR,
    stop_replica.API.key: STOP_REPLICA,
    update_metadata.API.key: UPDATE_METADATA,
    alter_partition.API.key: ALTER_PARTITION,
}
_ANSWERS = {fetch.API.key: FETCHED, alter_partition.API.key: JUDGED}
_HEADER_BYTES = 6  # the size of the rest, and a request's API key
_TOGETHER_S_MAX = 0.003


class _Talk:
    """One connection: what was asked and is not answered yet, and what is left of two frames."""

    def __init__(self) -> None:
        self.asked: deque[int] = deque()  # API keys
        self.left_bytes = {True: 0, False: 0}  # of a request, of an answer
        self.is_lost = False  # a header was sent in two parts


class Wanted(NamedTuple):
    """The next message of a kind to a broker is to be held back until one of others comes."""

    kind: str
    sender: int | None  # None: any
    until: Sequence[str]
    for_s: float  # at most


class _Held(NamedTuple):
    transport: SimulatedTransport
    wanted: Wanted


class Messages:
    """Owner: the history. Sees all that brokers send each other, once `begin` is called."""

    def __init__(self, trace: Trace, broker_ids: Sequence[int], rng: random.Random) -> None:
        self._trace = trace
        self._network = trace.cluster.network
        self._loop = trace.cluster.loop
        self._rng = rng
        self._ids = {f"m{each}": each for each in broker_ids}
        self._talks: WeakKeyDictionary[SimulatedTransport, _Talk] = WeakKeyDictionary()
        self._wanted: dict[int, Wanted] = {}  # by the receiver
        self._held: dict[int, _Held] = {}

    def begin(self) -> None:
        self._network.watch = self._watch

    def hold(self, broker_id: int, wanted: Wanted) -> None:
        """Hold back a message to this broker; what was wanted before is not any more."""
        self._wanted[broker_id] = wanted

    def delay(self, sender: int, to: int, by_s: float) -> None:
        """Have all that a broker answers another take so much longer, for as long."""
        for each in self._network.connections():
            is_between = each.local.host == f"m{sender}" and each.remote.host == f"m{to}"
            if is_between and each.local.port == PORT and each.late_ms < math.inf:
                each.late_ms = 1_000 * by_s
                end_s = self._loop.world_time() + by_s
                self._loop.call_in_world(end_s, each.release)

    def reset(self, client: int, server: int) -> None:
        """End the connections that one broker has opened to another."""
        for each in self._network.connections():
            is_between = each.local.host == f"m{server}" and each.remote.host == f"m{client}"
            if is_between and each.local.port == PORT:
                for end in (each, each.peer):
                    end.lose(ConnectionResetError("reset"))

    def end(self) -> None:
        """Have all arrive that is held back, and all that is late."""
        self._wanted.clear()
        self._held.clear()
        for each in self._network.connections():
            each.release()

    def _watch(self, transport: SimulatedTransport, piece: bytes) -> None:
        sender = self._ids.get(transport.local.host)
        to = self._ids.get(transport.remote.host)
        if sender is not None and to is not None:
            for kind in self._kinds(transport, piece):
                self._see(transport, sender, to, kind)

    def _kinds(self, transport: SimulatedTransport, piece: bytes) -> Iterator[str]:
        """Those of the messages that begin in this piece, and are of any interest."""
        is_request = transport.remote.port == PORT
        talk = self._talks.setdefault(transport if is_request else transport.peer, _Talk())
        position, left_bytes = 0, talk.left_bytes
        if talk.is_lost:
            return
        position = left_bytes[is_request]
        while position < len(piece):
            header = piece[position : position + _HEADER_BYTES]
            if len(header) < _HEADER_BYTES:
                talk.is_lost = True
                return
            if is_request:
                key = int.from_bytes(header[4:], "big")
                talk.asked.append(key)
                kind = _REQUESTS.get(key)
            else:
                kind = _ANSWERS.get(talk.asked.popleft()) if talk.asked else None
            position += 4 + int.from_bytes(header[:4], "big")
            if kind is not None:
                yield kind
        left_bytes[is_request] = position - len(piece)

    def _see(self, transport: SimulatedTransport, sender: int, to: int, kind: str) -> None:
        held, wanted = self._held.get(to), self._wanted.get(to)
        if held is not None:
            if kind in held.wanted.until and transport is not held.transport:
                self._join(to, held, transport, kind)
        elif wanted is not None and kind == wanted.kind and wanted.sender in (None, sender):
            del self._wanted[to]
            transport.late_ms = math.inf
            self._held[to] = held = _Held(transport, wanted)
            self._trace.note(f"m{to} is to wait for {kind} of m{sender}")
            end_s = self._loop.world_time() + wanted.for_s
            self._loop.call_in_world(end_s, self._release, to, held)

    def _join(self, to: int, held: _Held, transport: SimulatedTransport, kind: str) -> None:
        transport.late_ms = math.inf
        self._trace.note(f"m{to} gets {held.wanted.kind} in one tick with {kind}")
        self._trace.count(f"{held.wanted.kind} joined with {kind}")
        at_s = self._loop.world_time() + self._rng.uniform(0, _TOGETHER_S_MAX)
        both = [held.transport, transport]
        self._rng.shuffle(both)
        self._loop.call_in_world(at_s, self._release, to, held, *both)

    def _release(self, to: int, held: _Held, *both: SimulatedTransport) -> None:
        if self._held.get(to) is held:
            del self._held[to]
            for each in both or (held.transport,):
                each.release()
