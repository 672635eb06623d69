"""Lines from a stream or a file, as they come and many at a time, for a loop that must not block.

A pipe or terminal is read when the loop says that it can be, so that an interrupt is heard while
nobody types. A regular file is always ready. No thread: one that waits in a read cannot be ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import BinaryIO

from kdist.errors import UserError

CHUNK_BYTES = 1 << 18
LINE_BYTES_MAX = 1 << 24


class Lines:
    """Lines of a binary stream, without their ends: standard input, a file, a named pipe."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.is_terminal = stream.isatty()

    async def read(self) -> AsyncIterator[list[bytes]]:
        """What came together, until the end; a last line needs no end."""
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
        except (OSError, ValueError):  # epoll takes no regular files, and memory has no descriptor
            return self._read()
        try:
            await readable
        finally:
            loop.remove_reader(self._stream.fileno())
        return self._read()

    def _read(self) -> bytes:
        # One read of the descriptor: what it returns, no buffer keeps back from the next wait.
        chunk: bytes = self._stream.read1(CHUNK_BYTES)  # type: ignore[attr-defined]
        return chunk


class Splitter:
    """Chunks to lines. `UserError` if a line has no end within `LINE_BYTES_MAX`."""

    def __init__(self) -> None:
        self._begun = b""

    def split(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete."""
        *lines, self._begun = (self._begun + chunk).split(b"\n")
        if len(self._begun) > LINE_BYTES_MAX:
            raise UserError(f"a line is longer than {LINE_BYTES_MAX >> 20} MiB")
        return lines

    def rest(self) -> list[bytes]:
        """The last line, if it has no end."""
        return [self._begun] if self._begun else []


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
