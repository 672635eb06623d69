"""What answers are made of: bytes, and ranges of files that are never read into this process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast

from kdist.protocol.splice import Splice
from kdist.runtime.files import File


class Cuttable(Protocol):
    """What a file range belongs to."""

    @property
    def generation(self) -> int:
        """Changes when the file is truncated, after which it may be written again."""
        ...


class FileRange(Splice, Protocol):
    """A range of a segment file, as a fetch returns it (`storage.reading.Slice`)."""

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


BYTES = (bytes, bytearray, memoryview)
Bytes = bytes | bytearray | memoryview
Chunk = Bytes | Splice  # every splice that gets here is a FileRange


def release(chunks: Iterable[Chunk]) -> None:
    """Release the file ranges among chunks that will not be sent."""
    for chunk in chunks:
        if not isinstance(chunk, BYTES):
            cast(FileRange, chunk).release()
