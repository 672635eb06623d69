"""Splitting received bytes into frames, in place.

Bytes are received into the arena that all connections share, and whole frames are handed over from
there without a copy. Only the beginning of an incomplete frame moves to a buffer of the
connection's own, where the rest is received. So a connection between frames holds no buffer, and of
a large frame only the first part is copied, once.

That buffer is at most four times as large as what was received: a peer that announces a hundred
megabytes and sends ten bytes costs half a kilobyte. Above 4 MiB it is as large as the frame, since
mapped pages cost nothing until they are written to. A connection that has sent a large frame gets a
buffer for another of that size before the next receive, up to a bound: at 256 KiB, avoiding that
copy saves a tenth of what a produce costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kdist.errors import ProtocolError
from kdist.metrics.broker import NetworkMetrics
from kdist.network.buffers import MAPPED_FROM
from kdist.network.connection_state import CLOSED, FOLLOWERS, HELD, OPEN, ConnectionState, Reason
from kdist.network.socket_transport import NotReceivedError, receive_by
from kdist.network.tick import ReceiveInto, Tick
from kdist.protocol.frame import SIZE_BYTES, bytes_wanted, size_at
from kdist.wire.primitives import Buffer

_GROWTH = 4
LARGE_BYTES = 128 << 10  # of smaller frames, one receive into the arena brings several
_TRUSTED_BYTES_MAX = 4 << 20  # most that a connection's earlier frames let it have in advance
_RECEIVED_BYTES_MAX = 1 << 18  # for several frames in one receive: more gains nothing
_TAKEN_BYTES_MAX = 32 << 20  # in all connections' buffers; above it none gets one in advance


class NotYet(Exception):
    """A request must wait for earlier ones that are under way: its frame is handed over again."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class FrameReceiver(asyncio.BufferedProtocol):
    """One connection's receiving half. Frames are handed over while the `state` is OPEN.

    `request_bytes_max`, if frames are requests, gives the largest of an API by its key.
    """

    def __init__(
        self,
        tick: Tick,
        frame_bytes_max: int,
        request_bytes_max: Callable[[int], int] | None = None,
    ) -> None:
        self._tick = tick
        self._limit_frames(frame_bytes_max, request_bytes_max)
        self._own: memoryview | None = None  # begins with a frame that is incomplete or kept
        self._own_end = 0  # end of the bytes received into it
        self._own_limit = 0  # receive no further: where its frame ends, or several like the latest
        self._large = 0  # bytes of the latest frame with its size field; 0 if it was not large
        self._trusted = 0  # bytes of the largest frame so far, up to _TRUSTED_BYTES_MAX
        self.state = OPEN

    def _limit_frames(
        self, frame_bytes_max: int, request_bytes_max: Callable[[int], int] | None
    ) -> None:
        self._limits = frame_bytes_max, request_bytes_max
        # Up to this size, a frame needs no look at its API.
        is_any = request_bytes_max is None
        self._usual_bytes_max = frame_bytes_max if is_any else min(frame_bytes_max, LARGE_BYTES)

    @property
    def is_closed(self) -> bool:
        return self.state is CLOSED

    def _enter(self, state: ConnectionState) -> bool:
        """Enter `state` if it may follow the present one; else do nothing. Whether it did."""
        if state not in FOLLOWERS[self.state]:
            return False
        self.state = state
        return True

    # What a subclass defines

    def frame_received(self, frame: memoryview) -> None:
        """A whole frame, without its size; valid until the tick ends. May raise `ProtocolError`.

        May also raise `NotYet`, in a state that is not OPEN any more: then this frame is kept.
        """
        raise NotImplementedError

    def frame_refused(self, error: ProtocolError) -> None:
        """The bytes are not a frame, or `frame_received` refused one. Leaves the state OPEN."""
        raise NotImplementedError

    # What the transport calls

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - always -1
        own = self._own
        if own is None:
            return self._room_for_large() if self._large else self._tick.arena()
        return own[self._own_end : self._own_limit]

    def _room_for_large(self) -> memoryview:
        """A buffer for as many frames of the latest's size as are worth one receive."""
        buffers, large = self._tick.buffers, self._large
        if buffers.taken_bytes > _TAKEN_BYTES_MAX:
            return self._tick.arena()
        size = max(large, _RECEIVED_BYTES_MAX // large * large)
        self._own = own = buffers.take(size)
        self._own_end, self._own_limit = 0, size
        return own[:size]

    def buffer_updated(self, nbytes: int) -> None:
        own = self._own
        if own is None:
            self.find_frames(self._tick.take_received(nbytes), nbytes)
        else:
            self._own_end += nbytes
            self.find_frames(own, self._own_end)

    def find_frames(self, received: memoryview, end: int) -> None:
        """Hand over the whole frames before `end`, and keep the rest.

        `bytes_wanted` could find them all; checking for usual ones here saves 0.5 us each.
        """
        start = latest = 0
        usual_bytes_max = self._usual_bytes_max
        try:
            while start < end and self.state is OPEN:
                content = start + SIZE_BYTES
                size = size_at(received, start)[0] if content <= end else -1
                if (
                    not (0 <= size <= usual_bytes_max and content + size <= end)
                    and start + bytes_wanted(received, start, end, *self._limits) > end
                ):
                    break
                latest, start = start, content + size
                self.frame_received(received[content:start])
        except NotYet:
            start = latest
        except ProtocolError as error:
            self.refuse(error)
            return
        if start >= LARGE_BYTES or self._large:
            self._note_large(start - latest)
        if start < end and (self.state is OPEN or self.state is HELD):
            self._keep(received, start, end)
        elif self._own is not None:
            self.drop_received()

    def refuse(self, error: ProtocolError) -> None:
        """Parse nothing more: the bytes are not a frame, or not one that the subclass accepts."""
        self.drop_received()
        self.frame_refused(error)

    def _note_large(self, size: int) -> None:
        """Note the size of the latest whole frame; 0 if there was none."""
        if size:
            self._large = size if LARGE_BYTES <= size <= _TRUSTED_BYTES_MAX else 0
            self._trusted = max(self._trusted, min(size, _TRUSTED_BYTES_MAX))

    def _keep(self, received: memoryview, start: int, end: int) -> None:
        """Move the bytes that were not handed over to the connection's own buffer.

        On a connection that was held meanwhile, nothing has checked yet what their frame claims: if
        it is too large it gets no room, and is refused once what came before it is carried out.
        """
        rest = received[start:end]
        rest_size = end - start
        try:
            wanted = max(rest_size, bytes_wanted(rest, 0, rest_size, *self._limits))
        except ProtocolError:
            wanted = rest_size
        size = min(wanted, max(_GROWTH * rest_size, self._trusted))
        if size > MAPPED_FROM:
            size = wanted
        own = self._own
        if own is None or start or size > len(own):
            self.drop_received()
            self._own = own = self._tick.buffers.take(size)
            own[:rest_size] = rest
        self._own_end = rest_size
        self._own_limit = min(wanted, len(own))

    def kept(self, frame: memoryview) -> Buffer:
        """A frame that was just handed over, in memory that lasts as long as views of it.

        A large frame usually fills the connection's own buffer, which is then lent to those views.
        Other frames are copied.
        """
        own = self._own
        if own is None or len(frame) < LARGE_BYTES or 2 * len(frame) < len(own):
            return bytes(frame)
        self._own = None
        self._tick.buffers.lend(own)
        return frame

    def drop_received(self) -> None:
        """Give the connection's own buffer back."""
        if self._own is not None:
            self._tick.give_back(self._own)
            self._own = None

    def find_kept_frames(self) -> None:
        """Hand over the frames that were received while the state was not OPEN."""
        if self._own is not None:
            self.find_frames(self._own, self._own_end)


class RequestReceiver(FrameReceiver):
    """As the base class; a usual request, small and alone in its receive, takes half the calls."""

    def __init__(
        self,
        tick: Tick,
        frame_bytes_max: int,
        request_bytes_max: Callable[[int], int],
        metrics: NetworkMetrics,
    ) -> None:
        super().__init__(tick, frame_bytes_max, request_bytes_max)
        self._metrics = metrics

    def receive(self, receive_into: ReceiveInto) -> int:
        """As `Receiving.receive`."""
        if self._own is not None or self._large:
            return receive_by(self, receive_into)
        try:
            arena, received = self._tick.receive(receive_into)
        except OSError as error:
            raise NotReceivedError(error) from error
        self._metrics.received_bytes += received
        if (
            SIZE_BYTES < received <= self._usual_bytes_max
            and size_at(arena)[0] == received - SIZE_BYTES
            and self.state is OPEN
        ):
            try:
                self.frame_received(arena[SIZE_BYTES:received])
            except NotYet:
                self._keep(arena, 0, received)
            except ProtocolError as error:
                self.refuse(error)
        elif received and self.state is not CLOSED:
            self.find_frames(arena, received)
        return received

    def buffer_updated(self, nbytes: int) -> None:
        self._metrics.received_bytes += nbytes
        if self.state is not CLOSED:
            super().buffer_updated(nbytes)
