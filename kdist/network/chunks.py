"""What answers are made of: bytes, and ranges of files that are never read into this process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast

from kdist.protocol.splice import Splice


class RangeFile(Protocol):
    """What is needed of a `runtime.files.File`."""

    @property
    def path(self) -> str: ...

    def read(self, position: int, size: int) -> bytes: ...

    def read_cached(self, position: int, size: int) -> bytes | None: ...

    def fileno(self) -> int | None: ...


class FileRange(Splice, Protocol):
    """Bytes of a file, as a fetch gives them (`storage.reading.Slice`)."""

    @property
    def file(self) -> RangeFile: ...

    @property
    def position(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def is_cold(self) -> bool:
        """Whether it may have left the page cache."""
        ...

    def release(self) -> None:
        """The range was sent, or never will be: called exactly once."""
        ...


BYTES = (bytes, bytearray, memoryview)
Bytes = bytes | bytearray | memoryview
Chunk = Bytes | Splice  # every splice that gets here is a FileRange


def release(chunks: Iterable[Chunk]) -> None:
    """Let go of the file ranges among chunks that are not going to be sent."""
    for chunk in chunks:
        if not isinstance(chunk, BYTES):
            cast(FileRange, chunk).release()
