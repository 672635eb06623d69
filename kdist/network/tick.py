"""A tick of the event loop: what all connections received in it is processed together at its end.

A tick begins with the first bytes received, the first answer given, or the first work scheduled, by
a timer or another thread's result perhaps. It ends when every socket that was ready has been read:
the hooks run (the broker's appends all that came for a partition with one write), then what was
scheduled, then each connection sends its answers in one piece, then the receive arena is reused. So
a frame's bytes stay in place until the hooks have run, and need not be copied before that.

    receive A, receive B, receive C | hooks | send A, B, C | next tick
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from kdist.network.buffers import Buffers
from kdist.runtime.tick_loop import ending_ticks, turn_of
from kdist.wire.primitives import Buffer

# Measured with batches of 64 KiB: more than 256 KiB gains nothing. With 64 KiB each receive ended a
# tick, and a request cost twice as much.
ARENA_BYTES = 1 << 18
ARENA_BYTES_MIN = 1 << 16  # with less room left than this, the tick ends before the next receive


Send = Callable[[Buffer], int]
"""`send` of a non-blocking socket."""
ReceiveInto = Callable[[memoryview], int]
"""`recv_into` of a non-blocking socket: the number of bytes received, or its `OSError`."""


class TickWriter(Protocol):
    """A connection, as the end of a tick sees it."""

    pending_response: bytes
    """What was registered with `will_send`; b"" once the writer has withdrawn it."""

    def sent_in_part(self, data: Buffer, sent: int | OSError) -> None:
        """The kernel took only the first `sent` bytes of the pending response, or refused it."""
        ...

    def begin_writing(self) -> tuple[Send, Buffer] | None:
        """What the tick is to send for this writer; None if the writer has sent it by itself."""
        ...

    def end_writing(self, data: Buffer, sent: int | OSError) -> None:
        """The outcome of sending that: how many bytes the kernel took, or its error."""
        ...


class Tick:
    """The current tick of one loop; used again for each. Owner: the loop's thread."""

    __slots__ = (
        "_arena",
        "_hooks",
        "_is_open",
        "_pending_responses",
        "_scheduled",
        "_used_buffers",
        "_want_end",
        "_whole_arena",
        "_writers",
        "buffers",
        "turn",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._want_end = ending_ticks(loop, self.end)
        self.turn = turn_of(loop)
        self._hooks: list[Callable[[], None]] = []
        self._scheduled: list[Callable[[], None]] = []
        self._is_open = False
        self._whole_arena = self._arena = memoryview(bytearray(ARENA_BYTES))
        self._used_buffers: list[memoryview] = []
        self._pending_responses: list[tuple[TickWriter, Send]] = []
        self._writers: list[TickWriter] = []
        self.buffers = Buffers()

    def at_end(self, hook: Callable[[], None]) -> None:
        """Call `hook` at the end of every tick, before answers are sent."""
        self._hooks.append(hook)

    def remove(self, hook: Callable[[], None]) -> None:
        """Stop calling `hook`, and do not call it if it is scheduled."""
        for callbacks in (self._hooks, self._scheduled):
            if hook in callbacks:
                callbacks.remove(hook)

    def schedule(self, callback: Callable[[], None]) -> None:
        """Call it once, after the hooks, when this tick ends."""
        if not self._is_open:
            self._open()
        self._scheduled.append(callback)

    def arena(self) -> memoryview:
        """Where to receive next: shared by all connections, since one receives at a time."""
        if len(self._arena) < ARENA_BYTES_MIN:
            try:
                self.end()
            except OSError as error:  # from `get_buffer`, asyncio would blame the connection
                raise RuntimeError("a tick could not be ended") from error
        return self._arena

    def receive(self, receive_into: ReceiveInto) -> tuple[memoryview, int]:
        """Call `arena`, receive into it, and call `take_received`, all in one call."""
        arena = self._arena if len(self._arena) >= ARENA_BYTES_MIN else self.arena()
        size = receive_into(arena)
        if size:
            if not self._is_open:
                self._open()
            self._arena = arena[size:]
        return arena, size

    def take_received(self, size: int) -> memoryview:
        """The current arena, whose first `size` bytes now stay untouched until the tick ends."""
        if not self._is_open:
            self._open()
        arena = self._arena
        self._arena = arena[size:]
        return arena

    def give_back(self, buffer: memoryview) -> None:
        """Return a buffer to the pool when the tick ends; its frames stay readable until then."""
        if not self._is_open:
            self._open()
        self._used_buffers.append(buffer)

    def will_write(self, writer: TickWriter) -> None:
        """Call `writer.begin_writing` at the end of this tick."""
        if not self._is_open:
            self._open()
        self._writers.append(writer)

    def will_send(self, writer: TickWriter, send: Send) -> None:
        """Send `writer.pending_response` when this tick ends, ahead of all `will_write` writers."""
        if not self._is_open:
            self._open()
        self._pending_responses.append((writer, send))

    def _open(self) -> None:
        self._is_open = True
        self._want_end()

    def end(self) -> None:
        """Run the hooks, send for all writers, and reuse the receive arena.

        All pending responses are sent back to back, and all other work is done before or after: a
        send that wakes up the peer's process costs twice as much as one that finds it awake. A
        client with many connections is still awake if its next answer follows quickly enough.
        """
        if not self._is_open:
            return  # it ended early, when the arena was full
        try:
            for hook in self._hooks:
                hook()
            while self._scheduled:
                scheduled, self._scheduled = self._scheduled, []
                for callback in scheduled:
                    callback()
        finally:
            self._is_open = False  # what the writers cause from here on belongs to the next tick
        used_buffers, self._used_buffers = self._used_buffers, []
        writers, self._writers = self._writers, []
        if self._pending_responses:
            self._send_pending_responses()
        if writers:
            self._write(writers)
        for buffer in used_buffers:
            self.buffers.give_back(buffer)
        self._arena = self._whole_arena

    def _write(self, writers: list[TickWriter]) -> None:
        """Send for all writers back to back, and do all other work before or after that.

        Files may take long to send. Writers that no time is left for belong to the next tick.
        """
        pieces: list[tuple[TickWriter, Send, Buffer]] = []
        if len(writers) > 1:
            self.turn.renew()
        left = iter(writers)
        for writer in left:
            piece = writer.begin_writing()
            if piece is not None:
                pieces.append((writer, *piece))
            elif self.turn.is_over():
                for later in left:
                    self.will_write(later)
        results: list[int | OSError] = []
        for _, send, data in pieces:
            try:
                results.append(send(data))
            except OSError as error:
                results.append(error)
        for (writer, _, data), sent in zip(pieces, results, strict=True):
            writer.end_writing(data, sent)

    def _send_pending_responses(self) -> None:
        """The usual case, in fewer calls than `begin_writing` takes."""
        pending, self._pending_responses = self._pending_responses, []
        in_part: list[tuple[TickWriter, bytes, int | OSError]] = []
        for writer, send in pending:
            if piece := writer.pending_response:
                writer.pending_response = b""
                try:
                    if (sent := send(piece)) != len(piece):
                        in_part.append((writer, piece, sent))
                except OSError as error:
                    in_part.append((writer, piece, error))
        for writer, piece, outcome in in_part:
            writer.sent_in_part(piece, outcome)
