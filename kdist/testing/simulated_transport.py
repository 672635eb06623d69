"""One end of a simulated connection: an asyncio transport over queues in memory.

Bytes arrive in order, after random delays and cut at random places. A window limits the bytes under
way, as in TCP: a reader that stops reading stops the writer. Bytes that a partition stops wait for
its end. One connection may be slower than the others, or hold back all that is sent on it: so two
messages of different connections can be made to arrive at the same moment, in either order.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any, NamedTuple

from kdist.network.socket_transport import PeekingTransport
from kdist.testing.virtual_loop import VirtualLoop

WINDOW_BYTES = 1 << 16


class Conditions(NamedTuple):
    """What a network does to bytes.

    `cut_share` of the receives get only a part of what has arrived, often a single byte;
    `reset_share` of the pieces sent reset their connection instead.
    """

    delay_ms_max: float = 2.0
    cut_share: float = 0.5
    reset_share: float = 0.0


class Line(NamedTuple):
    """What both ends of a connection share."""

    loop: VirtualLoop
    rng: random.Random
    conditions: Conditions
    is_cut: Callable[[str, str], bool]
    watch: Callable[[SimulatedTransport, bytes], None]
    hold: Callable[[SimulatedTransport], None]
    forget: Callable[[SimulatedTransport], None]


class Address(NamedTuple):
    """A host's name and a port."""

    host: str
    port: int


class SimulatedTransport(PeekingTransport):
    """Owner: the loop. `peer` is the other end.

    Its protocol is called in the process that listened or connected, and so waits while that is
    stopped. What is on the way needs no process.
    """

    peer: SimulatedTransport

    def __init__(
        self,
        line: Line,
        local: Address,
        remote: Address,
        protocol: asyncio.BaseProtocol,
        context: Context,
    ) -> None:
        """`context` is its process's."""
        super().__init__({"sockname": tuple(local), "peername": tuple(remote)})
        assert isinstance(protocol, asyncio.BufferedProtocol), "kdist's protocols are"
        self._line = line
        self.local = local
        self.remote = remote
        self._protocol = protocol
        self._context = context
        self.late_ms = 0.0  # what is sent takes so much longer; infinity: until `release`
        self._unsent = bytearray()  # waiting for room in the window
        self._window = WINDOW_BYTES
        # Pieces with the times they are due; b"" is the end of stream, None a reset.
        self._under_way: deque[tuple[float, bytes | None]] = deque()
        self._unread = bytearray()
        self._is_end_wanted = False
        self._is_end_sent = False
        self._is_end_received = False
        self._is_paused = False
        self._is_receive_due = False
        self._is_writing_paused = False
        self._high_water = WINDOW_BYTES
        self._is_closing = False
        self._is_gone = False

    def call(self, callback: Callable[..., object], *args: object) -> None:
        """Call the protocol soon, in its process."""
        self._line.loop.call_soon(callback, *args, context=self._context)

    # What the protocol calls

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return not self._is_paused and not self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._want_receive()

    def is_peer_gone(self) -> bool:
        return self._is_end_received and not self._unread

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:  # noqa: ARG002
        self._high_water = WINDOW_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._is_closing:
            return
        self._unsent += data
        self._send()
        if len(self._unsent) > self._high_water and not self._is_writing_paused:
            self._is_writing_paused = True
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Send what is left, then the end of stream; go on receiving."""
        self._is_end_wanted = True
        self._maybe_end()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Send what is left, then the end of stream."""
        if not self._is_closing:
            self._is_closing = self._is_end_wanted = True
            self._maybe_end()

    def abort(self) -> None:
        """Close at once; the peer gets a reset after the bytes under way, unless it is cut off."""
        if not self._is_gone:
            self.lose(None)
            self.send_reset()

    # Sending

    def _send(self) -> None:
        """Send what the window admits, but no tiny pieces (RFC 1122, 4.2.3.4)."""
        while self._unsent and not self._is_gone:
            if self._window < min(len(self._unsent), WINDOW_BYTES // 4):
                return
            piece = bytes(self._unsent[: self._window])
            del self._unsent[: len(piece)]
            self._window -= len(piece)
            self._put_on_the_way(piece)

    def send_reset(self) -> None:
        """Send the peer a reset, behind the bytes under way."""
        self._put_on_the_way(None)

    def _put_on_the_way(self, piece: bytes | None) -> None:
        line = self._line
        if piece:
            line.watch(self, piece)
        delay_ms = line.rng.uniform(0, line.conditions.delay_ms_max) + self.late_ms
        due = line.loop.world_time() + delay_ms / 1000
        if self._under_way:
            due = max(due, self._under_way[-1][0])  # one connection's bytes keep their order
        self._under_way.append((due, piece))
        if due < math.inf:
            line.loop.call_in_world(due, self.deliver)

    def release(self) -> None:
        """Have all that was held back arrive now; what is sent from here on is not late."""
        self.late_ms, now_s = 0.0, self._line.loop.world_time()
        self._under_way = deque(
            (now_s if due == math.inf else due, piece) for due, piece in self._under_way
        )
        self._line.loop.call_in_world(now_s, self.deliver)

    def deliver(self) -> None:
        """Hand the pieces that are due to the peer, unless the hosts are partitioned."""
        line = self._line
        now_s = line.loop.time()
        while self._under_way and self._under_way[0][0] <= now_s:
            if line.is_cut(self.local.host, self.remote.host):
                line.hold(self)
                return
            _, piece = self._under_way.popleft()
            if piece is None:
                self.peer.lose(ConnectionResetError("the peer is gone"))
                return
            if line.rng.random() < line.conditions.reset_share:
                self.lose(ConnectionResetError("reset by chance"))
                self.peer.lose(ConnectionResetError("reset by chance"))
                return
            self.peer.arrive(piece)

    def _maybe_end(self) -> None:
        if self._unsent or self._is_gone:
            return
        if self._is_end_wanted and not self._is_end_sent:
            self._is_end_sent = True
            self._put_on_the_way(b"")
        if self._is_closing:
            self.lose(None)

    def lose(self, error: Exception | None) -> None:
        """End this side of the connection, and tell its protocol."""
        if not self._is_gone:
            self._is_gone = self._is_closing = True
            self._unread.clear()
            self._line.forget(self)
            self.call(self._protocol.connection_lost, error)

    def vanish(self) -> None:
        """As `lose`, without telling the protocol: its process is gone too."""
        self._is_gone = self._is_closing = True
        self._under_way.clear()
        self._line.forget(self)

    # Receiving

    def arrive(self, piece: bytes) -> None:
        """A piece arrives; b"" is the end of stream."""
        if self._is_gone:
            if piece:  # TCP answers data for a closed socket with a reset
                self._line.loop.call_soon(self.peer.lose, ConnectionResetError("nobody is here"))
            return
        self._unread += piece
        self._is_end_received = not piece
        self._want_receive()

    def _want_receive(self) -> None:
        if not self._is_receive_due:
            self._is_receive_due = True
            self.call(self._receive)

    def _receive(self) -> None:
        """One receive: as much as the protocol has room for, or a random part of that."""
        self._is_receive_due = False
        if self._is_paused or self._is_closing:
            return
        if self._unread:
            buffer = memoryview(self._protocol.get_buffer(-1))
            size = self._cut(min(len(buffer), len(self._unread)))
            buffer[:size] = self._unread[:size]
            del self._unread[:size]
            if self._unread or self._is_end_received:
                self._want_receive()
            self.peer.open_window(size)
            self._protocol.buffer_updated(size)
        elif self._is_end_received:
            self._is_end_received = False
            if not self._protocol.eof_received():
                self.close()

    def _cut(self, size: int) -> int:
        rng = self._line.rng
        if rng.random() >= self._line.conditions.cut_share:
            return size
        return 1 if rng.random() < 0.5 else rng.randint(1, size)

    def open_window(self, size: int) -> None:
        """The peer has read `size` bytes."""
        self._window += size
        if self._unsent:
            self._send()
        if self._is_writing_paused and not self._unsent and not self._is_gone:
            self._is_writing_paused = False
            self.call(self._protocol.resume_writing)
        self._maybe_end()
