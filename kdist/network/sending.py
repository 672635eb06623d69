"""Sending a connection's answers in order: bytes by its transport, file ranges by sendfile.

The transport's buffer limit is 0: it calls `pause_writing` whenever the kernel did not take all,
and the rest is sent once its buffer is empty. Where a file has no descriptor (a simulated disk), or
a transport no sendfile (TLS, a simulated network), ranges are read and written in pieces. What a
consumer far behind reads may not be in the page cache: that is checked first, and a thread reads
what is missing, since `sendfile` would block the loop, and with it all connections, on the disk.

An answer with records takes three calls: the bytes before them, the range, a few bytes after it.
The last would leave as a packet of its own and wake its reader once more, which costs the sender 30
to 100 us of the 500 that a MiB takes: so the socket is corked from the first to the last.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, cast

from kdist.metrics.broker import NetworkMetrics
from kdist.network.socket_transport import DirectTransport, FileTransport
from kdist.network.tick import Send
from kdist.protocol.frame import Chunk
from kdist.protocol.schema import Splice
from kdist.runtime.files import File
from kdist.runtime.tasks import Tasks
from kdist.runtime.tick_loop import Turn
from kdist.wire.primitives import BUFFERS, Buffer

logger = logging.getLogger(__name__)

PIECE_BYTES = 1 << 18
COLD_PIECE_BYTES = 1 << 20
RANGE_BYTES = 4 << 10  # what a waiting file range counts as: it takes no memory, but pins the file
COPIED_BYTES_MAX = 8 << 10  # to copy so small a range saves 2 us; at 16 KiB sendfile costs the same


class Cuttable(Protocol):
    """What a file range belongs to."""

    @property
    def generation(self) -> int:
        """Changes when the file is truncated, after which it may be written again."""
        ...


class FileRange(Splice, Protocol):
    """A range of a segment file, as a fetch returns it (`storage.reading.Slice`).

    Every `Splice` of an answer is one.
    """

    @property
    def file(self) -> File: ...

    @property
    def segment(self) -> Cuttable: ...

    @property
    def generation(self) -> int:
        """The segment's when the range was found: if they differ, its bytes may be others."""
        ...

    @property
    def position(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def is_cold(self) -> bool:
        """Whether it may have left the page cache."""
        ...

    def release(self) -> None:
        """Called exactly once, when the range was sent or never will be."""
        ...


class Sender:
    """One connection's sending half.

    `waiting_bytes` counts the bytes in memory that the kernel has not taken yet, and `RANGE_BYTES`
    for each file range. `is_blocked` is true until the kernel (or the disk) is ready for more; then
    `progressed` is called.
    """

    __slots__ = (
        "_chunks",
        "_direct",
        "_files",
        "_in_transport",
        "_is_corked",
        "_is_warming",
        "_metrics",
        "_progressed",
        "_range",
        "_range_sent",
        "_set_option",
        "_tasks",
        "_transport",
        "_turn",
        "_warm_end",
        "is_blocked",
        "is_closed",
        "put_bytes",
        "socket_send",
        "waiting_bytes",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        metrics: NetworkMetrics,
        progressed: Callable[[], None],
        tasks: Tasks,
        turn: Turn,
    ) -> None:
        transport.set_write_buffer_limits(high=0)
        self._transport = transport
        self._metrics = metrics
        self._progressed = progressed
        self._chunks: deque[Chunk] = deque()
        self.put_bytes = self._chunks.append
        self._range: FileRange | None = None  # being sent: `_range_sent` bytes are
        self._range_sent = 0
        self._warm_end = 0  # of a cold range: it is in the page cache up to this file position
        self._is_warming = False  # whether a thread reads a part of it
        self._tasks = tasks
        self._turn = turn
        self._in_transport = 0
        self._direct = direct = transport if isinstance(transport, DirectTransport) else None
        self._files = transport if isinstance(transport, FileTransport) else None
        self.socket_send: Send | None = direct.direct_send if direct else None
        corked = transport.get_extra_info("socket") if direct else None
        self._set_option: Callable[[int, int, int], None] | None = (
            corked.setsockopt if corked else None
        )
        self._is_corked = False
        self.waiting_bytes = 0
        self.is_blocked = False
        self.is_closed = False

    def put(self, chunks: Iterable[Chunk]) -> None:
        """Queue an answer's chunks, which `waiting_bytes` includes already (`waiting_size`)."""
        chunk: Any
        for chunk in chunks:
            if not isinstance(chunk, BUFFERS) and chunk.size <= COPIED_BYTES_MAX:
                copied = copied_if_small(chunk)
                if copied is not None:
                    self.waiting_bytes += len(copied) - RANGE_BYTES
                    chunk = copied
            self._chunks.append(chunk)

    def send_answer(self, chunks: Sequence[Chunk]) -> None:
        """As `put` and `write`, when nothing waits; with a third of the calls for records."""
        part: Any = chunks[1] if len(chunks) == 3 else b""
        direct = self._direct
        if (
            direct is None
            or self._files is None
            or isinstance(part, BUFFERS)
            or part.is_cold
            or part.size <= COPIED_BYTES_MAX
            or part.generation != part.segment.generation
            or (descriptor := part.file.fileno()) is None
        ):
            self.put(chunks)
            self.write()
            return
        head, _, tail = cast(tuple[Buffer, FileRange, Buffer], chunks)
        self._cork(True)
        self._to_socket(direct, head, 0)
        size = part.size
        sent = 0 if self.is_blocked else self._send_file(part, descriptor, part.position, size)
        if sent == size:
            self.waiting_bytes -= RANGE_BYTES
            part.release()
            self._to_socket(direct, tail, 0)
            if not self.is_blocked:
                self._cork(False)
            return
        self._range, self._range_sent, self._warm_end = part, sent, 0
        self._chunks.append(tail)
        self.write()

    @property
    def has_waiting(self) -> bool:
        return bool(self._chunks) or self.is_blocked

    def write(self) -> None:
        """Send until nothing is left, the kernel takes no more, or files have taken this turn."""
        chunks = self._chunks
        chunk: Any
        while not self.is_blocked and not self.is_closed:
            if self._range is not None:
                self._send_range(self._range)
                if chunks and self._direct is not None and self._turn.is_over():
                    self._direct.rest()
            elif not chunks:
                if self._is_corked:
                    self._cork(False)
                return
            else:
                chunk = chunks.popleft()
                if isinstance(chunk, BUFFERS):
                    self._send_bytes(chunk)
                else:
                    self._range = chunk
                    self._range_sent = self._warm_end = 0

    def direct_send(self) -> Send | None:
        """The socket's `send`, if nothing waits before it. The caller counts the bytes sent."""
        if self._chunks or self._range is not None or self.is_blocked:
            return None
        return self.socket_send

    def sent_in_part(self, data: Buffer, sent: int | OSError) -> None:
        """`direct_send` took only the first `sent` bytes of `data`, or failed."""
        assert self._direct is not None
        self._in_transport = len(data)
        self.is_blocked = True  # until the kernel took the rest; for good if the connection is lost
        self._direct.go_on(data, sent)

    def _send_bytes(self, data: Buffer) -> None:
        """Send `data`, and all bytes queued up to the next file range, as one piece."""
        chunks, flags = self._chunks, 0
        chunk: Any
        if chunks:
            parts = [data]
            while chunks and isinstance(chunk := chunks[0], BUFFERS):
                parts.append(chunk)
                chunks.popleft()
            if len(parts) > 1:
                data = b"".join(parts)
            if chunks and self._direct is not None and not chunk.is_cold:
                if len(chunks) == 1 and self._files is not None:
                    flags = socket.MSG_MORE
                elif not self._is_corked:
                    self._cork(True)
        if self._direct is None:
            self._to_transport(data)
        else:
            self._to_socket(self._direct, data, flags)

    def _cork(self, is_corked: bool) -> None:
        """Have the kernel hold back a partial packet for what follows, or stop doing so."""
        if self._set_option is not None:
            self._is_corked = is_corked
            self._set_option(socket.IPPROTO_TCP, socket.TCP_CORK, is_corked)

    def _to_socket(self, direct: DirectTransport, data: Buffer, flags: int) -> None:
        """As `_to_transport`, with a third of its calls."""
        sent: int | OSError
        try:
            sent = direct.direct_send(data, flags)
        except OSError as error:
            sent = error
        if sent == len(data):
            self.waiting_bytes -= sent
            self._metrics.sent_bytes += sent
        else:
            self.sent_in_part(data, sent)

    def _to_transport(self, data: Buffer) -> None:
        size = self._in_transport = len(data)
        self._transport.write(data)
        if not self.is_blocked:
            self._in_transport = 0
            self._count_sent(size)

    def _count_sent(self, size: int) -> None:
        self.waiting_bytes -= size
        self._metrics.sent_bytes += size

    # File ranges

    def _send_range(self, part: FileRange) -> None:
        position, left = part.position + self._range_sent, part.size - self._range_sent
        if part.generation != part.segment.generation:  # the rest may be of other records
            self._end_truncated(part, position)
            return
        size, descriptor = left, part.file.fileno() if self._direct is not None else None
        if descriptor is not None and part.is_cold:
            size = self._warm_bytes(part, position, left)
        if not size:
            sent = 0
        elif descriptor is not None and self._files is not None:
            sent = self._send_file(part, descriptor, position, size)
        else:
            sent = self._send_read(part, position, min(size, PIECE_BYTES))
        self._range_sent += sent
        if self._range_sent == part.size:
            self._range = None
            self.waiting_bytes -= RANGE_BYTES
            part.release()
        elif not sent and not self.is_blocked and not self.is_closed:
            self._end_truncated(part, position)

    def _send_read(self, part: FileRange, position: int, size: int) -> int:
        data = part.file.read(position, size)
        if data:
            self.waiting_bytes += len(data)
            if self._direct is None:
                self._to_transport(data)
            else:
                self._to_socket(self._direct, data, 0)
        return len(data)

    def _end_truncated(self, part: FileRange, position: int) -> None:
        logger.warning("%s was truncated while it was sent from byte %d", part.file.path, position)
        self._abort()

    def _send_file(self, part: FileRange, descriptor: int, position: int, size: int) -> int:
        """One sendfile call; what the socket's buffer does not take is left for a later tick."""
        assert self._files is not None
        try:
            sent = self._files.send_file(descriptor, position, size)
        except OSError:
            # An ETIMEDOUT or EIO may come from the file or from the socket.
            part.file.read(position, 1)  # raises DiskFailed if it is from the file
            self._abort()
            return 0
        self._metrics.sent_bytes += sent
        return sent

    def _warm_bytes(self, part: FileRange, position: int, left: int) -> int:
        """How many bytes from `position` are in the page cache; 0 if a thread now reads them."""
        if position < self._warm_end:
            return self._warm_end - position
        size = min(left, COLD_PIECE_BYTES)
        end, file = position + size, part.file
        # The kernel reads ahead: if the first and the last page are cached, few between are not.
        if file.read_cached(position, 1) and file.read_cached(end - 1, 1):
            self._warm_end = end
            return size
        self.is_blocked = self._is_warming = True
        if self._is_corked:  # the bytes before the range need not wait for the disk
            self._cork(False)

        def read() -> None:
            file.read(position, size)

        self._tasks.run_blocking(read, partial(self._end_warming, part, end))
        return 0

    def _end_warming(self, part: FileRange, end: int, error: BaseException | None) -> None:
        self._is_warming = False
        if self.is_closed:
            part.release()
        if error is not None:
            raise error  # a failing disk: the loop's handler ends the broker
        if not self.is_closed:
            self._warm_end = end
            self.is_blocked = False
            self.write()
            self._progressed()

    def _abort(self) -> None:
        self.is_blocked = True  # nothing may follow an answer that was sent in part
        self._transport.abort()
        self.close()

    def transport_took_all(self) -> None:
        """The transport's buffer is empty again."""
        self.is_blocked = False
        self._count_sent(self._in_transport)
        self._in_transport = 0
        self.write()
        self._progressed()

    def close(self) -> None:
        """Send nothing more, and release what was not sent.

        May be called again: after `_abort` answers are still queued until the connection hears of
        its loss.
        """
        self.is_closed = True
        if self._range is not None and not self._is_warming:
            self._chunks.append(self._range)
            self._range = None
        release(self._chunks)
        self._chunks.clear()


def release(chunks: Iterable[Chunk]) -> None:
    """Release the file ranges among chunks that will not be sent."""
    for chunk in chunks:
        if not isinstance(chunk, BUFFERS):
            cast(FileRange, chunk).release()


def waiting_size(chunks: Iterable[Chunk]) -> int:
    """What these chunks add to `waiting_bytes`."""
    return sum([len(chunk) if isinstance(chunk, BUFFERS) else RANGE_BYTES for chunk in chunks])


def copied_if_small(part: FileRange) -> bytes | None:
    """The bytes of a small file range, to be sent in one piece with others; releases the range.

    None if the range is too large, cold, or its file was truncated.
    """
    size = part.size
    if size > COPIED_BYTES_MAX or part.is_cold or part.generation != part.segment.generation:
        return None
    data = part.file.read(part.position, size)
    if len(data) < size:
        return None  # the file was truncated: `_send_range` will deal with it
    part.release()
    return data
