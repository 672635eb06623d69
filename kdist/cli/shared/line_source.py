"""Reads lines from a stream or file as they arrive, many at a time, without blocking the loop.

A pipe or terminal is read only when the loop reports it readable, so that an interrupt takes effect
while there is no input. A regular file is always ready. There is no reader thread, as one that is
blocked in a read could not be stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import BinaryIO

from kdist.errors import UserError

CHUNK_BYTES = 1 << 18
LINE_BYTES_MAX = 1 << 24


class Lines:
    """Lines of a binary stream, without line feeds: standard input, a file, a named pipe."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.is_terminal = stream.isatty()

    async def read(self) -> AsyncIterator[list[bytes]]:
        """The complete lines of each chunk, until end of file; the last needs no line feed."""
        splitter = Splitter()
        while chunk := await self._chunk():
            if lines := splitter.split(chunk):
                yield lines
        if rest := splitter.rest():
            yield rest

    async def _chunk(self) -> bytes:
        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        try:
            loop.add_reader(self._stream.fileno(), _set, readable)
        except (OSError, ValueError):  # epoll refuses regular files; BytesIO has no descriptor
            return self._read()
        try:
            await readable
        finally:
            loop.remove_reader(self._stream.fileno())
        return self._read()

    def _read(self) -> bytes:
        # One read of the descriptor, all of it returned: data left in Python's buffer would not
        # make the descriptor readable again.
        chunk: bytes = self._stream.read1(CHUNK_BYTES)  # type: ignore[attr-defined]
        return chunk


class Splitter:
    """Splits chunks into lines. `UserError` for a line longer than `LINE_BYTES_MAX`.

    It is raised when there is more of the line to read, so that those before it were returned.
    """

    def __init__(self) -> None:
        self._begun = b""
        self._count = 0

    def split(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes."""
        self._check()
        *lines, self._begun = (self._begun + chunk).split(b"\n")
        self._count += len(lines)
        return lines

    def rest(self) -> list[bytes]:
        """The last line, if it has no line feed."""
        self._check()
        return [self._begun] if self._begun else []

    def _check(self) -> None:
        if len(self._begun) > LINE_BYTES_MAX:
            longer = f"is longer than {LINE_BYTES_MAX >> 20} MiB"
            raise UserError(f"line {self._count + 1} {longer}")


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
