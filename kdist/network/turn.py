"""A turn of the event loop: what all connections received in it is worked off together at its end.

A turn begins with the first bytes received or answer given. When all that was ready has been read,
it ends: the hooks run (the broker's appends what came for each partition with one write), then each
connection sends its answers in one piece, then the receive buffers are used anew. So a frame's
bytes stay where they are until the hooks have run, and nobody needs to copy them before.

    receive A, receive B, receive C | hooks | send A, B, C | next turn
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from kdist.network.buffers import Buffers
from kdist.network.chunks import Bytes
from kdist.runtime.turn_loop import ending_turns

# Measured with batches of 64 KiB: from 256 KiB on it is all the same. At 64 KiB each receive ended
# a turn, and a request cost twice as much.
SPACE_BYTES = 1 << 18
SPACE_BYTES_MIN = 1 << 16  # less than this is not worth a receive


Send = Callable[[Bytes], int]
"""A socket's, which does not block."""
ReceiveInto = Callable[[memoryview], int]
"""Receives once: how many bytes came. Raises as a socket does."""


class Writer(Protocol):
    """Whoever has something to send at the end of a turn."""

    piece: bytes
    """What `will_send` is to send, unless it is taken back before that."""

    def sent_in_part(self, data: Bytes, sent: int | OSError) -> None:
        """Of its piece only so many bytes were sent, or none."""
        ...

    def begin_writing(self) -> tuple[Send, Bytes] | None:
        """What is there, if that is one piece and nothing before it; None: it is dealt with."""
        ...

    def end_writing(self, data: Bytes, sent: int | OSError) -> None:
        """What became of that piece: how many bytes of it were sent, or why none."""
        ...


class Turn:
    """The turns of one loop, one after the other. Owner: the loop's thread."""

    __slots__ = (
        "_hooks",
        "_is_open",
        "_pieces",
        "_space",
        "_used_buffers",
        "_want_end",
        "_whole_space",
        "_writers",
        "buffers",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._want_end = ending_turns(loop, self.end)
        self._hooks: list[Callable[[], None]] = []
        self._is_open = False
        self._whole_space = self._space = memoryview(bytearray(SPACE_BYTES))
        self._used_buffers: list[memoryview] = []
        self._pieces: list[tuple[Writer, Send]] = []
        self._writers: list[Writer] = []
        self.buffers = Buffers()

    def at_end(self, hook: Callable[[], None]) -> None:
        """Call `hook` at the end of every turn, before answers are sent."""
        self._hooks.append(hook)

    def remove(self, hook: Callable[[], None]) -> None:
        """Call `hook` no more; it may have been removed before."""
        if hook in self._hooks:
            self._hooks.remove(hook)

    def space(self) -> memoryview:
        """Where to receive next: shared by all connections, since one receives at a time."""
        if len(self._space) < SPACE_BYTES_MIN:
            try:
                self.end()
            except OSError as error:  # in `get_buffer` asyncio would take it for the peer's
                raise RuntimeError("a turn could not be ended") from error
        return self._space

    def receive(self, receive_into: ReceiveInto) -> tuple[memoryview, int]:
        """`space`, a receive into it, and `take_received` of what came, in one call."""
        space = self._space if len(self._space) >= SPACE_BYTES_MIN else self.space()
        size = receive_into(space)
        if size:
            if not self._is_open:
                self._open()
            self._space = space[size:]
        return space, size

    def take_received(self, size: int) -> memoryview:
        """`space()`, of which the first `size` bytes now hold until the end of this turn."""
        if not self._is_open:
            self._open()
        space = self._space
        self._space = space[size:]
        return space

    def give_back(self, buffer: memoryview) -> None:
        """Return a buffer to the pool when the turn ends: until then its frames may be read."""
        if not self._is_open:
            self._open()
        self._used_buffers.append(buffer)

    def will_write(self, writer: Writer) -> None:
        """Let `writer` send at the end of this turn."""
        if not self._is_open:
            self._open()
        self._writers.append(writer)

    def will_send(self, writer: Writer, send: Send) -> None:
        """Send `writer.piece` at the end of this turn, ahead of all that others write."""
        if not self._is_open:
            self._open()
        self._pieces.append((writer, send))

    def _open(self) -> None:
        self._is_open = True
        self._want_end()

    def end(self) -> None:
        """Run the hooks, let all writers write, use the receive space anew."""
        if not self._is_open:
            return  # ended early, for want of space
        for hook in self._hooks:
            hook()
        self._is_open = False  # what the writers bring about belongs to the next turn
        used_buffers, self._used_buffers = self._used_buffers, []
        writers, self._writers = self._writers, []
        self._write(writers)
        for buffer in used_buffers:
            self.buffers.give_back(buffer)
        self._space = self._whole_space

    def _write(self, writers: list[Writer]) -> None:
        """Have all of them send, and nothing done between one piece and the next.

        Who gets an answer is woken up, which costs the sender as much as the sending. If the next
        answer is there before it falls asleep, as with one client on many connections, it is awake.
        """
        self._send_pieces()
        pieces: list[tuple[Writer, Send, Bytes]] = []
        for writer in writers:
            piece = writer.begin_writing()
            if piece is not None:
                pieces.append((writer, *piece))
        results: list[int | OSError] = []
        for _, send, data in pieces:
            try:
                results.append(send(data))
            except OSError as error:
                results.append(error)
        for (writer, _, data), sent in zip(pieces, results, strict=True):
            writer.end_writing(data, sent)

    def _send_pieces(self) -> None:
        """Mostly this is all that there is to send, in fewer calls than others take."""
        pieces, self._pieces = self._pieces, []
        in_part: list[tuple[Writer, bytes, int | OSError]] = []
        for writer, send in pieces:
            if piece := writer.piece:
                writer.piece = b""
                try:
                    if (sent := send(piece)) != len(piece):
                        in_part.append((writer, piece, sent))
                except OSError as error:
                    in_part.append((writer, piece, error))
        for writer, piece, what in in_part:
            writer.sent_in_part(piece, what)
