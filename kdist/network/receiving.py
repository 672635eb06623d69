"""Frames out of what a transport receives, in place.

Bytes are received into the space that all connections share. Whole frames are handed over where
they lie; only the beginning of a frame that is not whole yet moves to a buffer of its own, where
the rest is received. So a connection between frames holds no buffer at all, and a large frame is
copied in part, once.

A frame's buffer grows with what has come, fourfold at most: a peer that announces a hundred
megabytes and sends ten bytes costs half a kilobyte. Above 4 MiB it is as large as the frame, since
pages that nothing has come into cost nothing. Who has sent a large frame gets room for as much
again at once, up to a bound: at 256 KiB, not to copy it saves a tenth of what a produce costs.
"""

from __future__ import annotations

import asyncio
import struct

from kdist.errors import ProtocolError
from kdist.network.buffers import MAPPED_FROM
from kdist.network.turn import Turn
from kdist.protocol.framing import SIZE_BYTES, bytes_wanted, find_frame

_GROWTH = 4
LARGE_BYTES = 128 << 10  # of smaller ones a receive into the shared space brings several
_TRUSTED_BYTES_MAX = 4 << 20  # for a connection, however much it has sent before
_RECEIVED_BYTES_MAX = 1 << 18  # at a time, of frames that are smaller: more of them is not better
_TAKEN_BYTES_MAX = 32 << 20  # when all connections have so much, nobody is given more at once
size_at = struct.Struct(">i").unpack_from


class NotYet(Exception):
    """A request is to find done what is still under way: it is handed over again later."""


class FrameReceiver(asyncio.BufferedProtocol):
    """One connection's receiving half. Subclasses are told of frames, and may hold it."""

    def __init__(self, turn: Turn, frame_bytes_max: int) -> None:
        self._turn = turn
        self._frame_bytes_max = frame_bytes_max
        self._own: memoryview | None = None  # begins with a frame that is not whole, or was held
        self._own_end = 0  # so many bytes of it are received
        self._own_limit = 0  # so many shall be: to the end of the frame, so that no other's follow
        self._large = 0  # bytes of the latest frame and its size, if they were many
        self._trusted = 0  # and of the largest
        self._is_held = False
        self.is_closed = False  # set by whoever closes: what comes then is not kept

    # What a subclass says

    def frame_received(self, frame: memoryview) -> None:
        """A whole frame without its size. Holds until the turn ends. May raise ProtocolError.

        Or `NotYet`, once the connection is held: it is the first of the held frames then.
        """
        raise NotImplementedError

    def frame_refused(self, error: ProtocolError) -> None:
        """The bytes are no frame, or `frame_received` raised. Nothing more is parsed."""
        raise NotImplementedError

    # What the transport calls

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - always -1
        own = self._own
        if own is None:
            return self._room_for_large() if self._large else self._turn.space()
        return own[self._own_end : self._own_limit]

    def _room_for_large(self) -> memoryview:
        """A buffer for as many frames like the latest as are worth one receive: one, or more."""
        buffers, large = self._turn.buffers, self._large
        if buffers.taken_bytes > _TAKEN_BYTES_MAX:
            return self._turn.space()
        size = max(large, _RECEIVED_BYTES_MAX // large * large)
        self._own = own = buffers.take(size)
        self._own_end, self._own_limit = 0, size
        return own[:size]

    def buffer_updated(self, nbytes: int) -> None:
        own = self._own
        if own is None:
            self.find_frames(self._turn.take_received(nbytes), nbytes)
        else:
            self._own_end += nbytes
            self.find_frames(own, self._own_end)

    def find_frames(self, received: memoryview, end: int) -> None:
        """Hand over the whole frames before `end`, and keep what is left.

        `find_frame` would find them all. To look for whole ones here saves 0.5 us each.
        """
        start = latest = 0
        frame_bytes_max = self._frame_bytes_max
        try:
            while start < end and not self._is_held:
                content = start + SIZE_BYTES
                size = size_at(received, start)[0] if content <= end else -1
                if not (0 <= size <= frame_bytes_max and content + size <= end):
                    find_frame(received, start, end, frame_bytes_max)  # may refuse it
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
        if start < end and not self.is_closed:
            self._keep(received, start, end)
        elif self._own is not None:
            self.drop_received()

    def refuse(self, error: ProtocolError) -> None:
        """Parse nothing more: the bytes are no frame, or no frame that the subclass takes."""
        self._is_held = True
        self.drop_received()
        self.frame_refused(error)

    def _note_large(self, size: int) -> None:
        """The latest whole frame has so many bytes; 0: there was none."""
        if size:
            self._large = size if LARGE_BYTES <= size <= _TRUSTED_BYTES_MAX else 0
            self._trusted = max(self._trusted, min(size, _TRUSTED_BYTES_MAX))

    def _keep(self, received: memoryview, start: int, end: int) -> None:
        """Have what was not handed over in a buffer of its own, with room to go on."""
        rest = received[start:end]
        rest_size = end - start
        wanted = max(rest_size, bytes_wanted(rest, 0, rest_size))
        size = min(wanted, max(_GROWTH * rest_size, self._trusted))
        if size > MAPPED_FROM:
            size = wanted
        own = self._own
        if own is None or start or size > len(own):
            self.drop_received()
            self._own = own = self._turn.buffers.take(size)
            own[:rest_size] = rest
        self._own_end = rest_size
        self._own_limit = min(wanted, len(own))

    def drop_received(self) -> None:
        """Give the connection's own buffer back."""
        if self._own is not None:
            self._turn.give_back(self._own)
            self._own = None

    # Holding

    def find_held_frames(self) -> None:
        """Go on with what was received before the connection was held."""
        if self._own is not None:
            self.find_frames(self._own, self._own_end)
