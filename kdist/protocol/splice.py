"""Record bytes that a response refers to without a copy: they go from file to socket by sendfile.

A fetch response is a few hundred bytes around megabytes of record batches. Its record sets may be
`Splice`s: anything with a length that the network knows how to send. The encoder then writes to a
`SplicedBuffer`, which notes where each splice belongs; `chunks` returns all pieces in order.
"""

from __future__ import annotations

from typing import Protocol


class Splice(Protocol):
    """Bytes that are stored elsewhere, such as a range of a segment file."""

    def __len__(self) -> int:
        """How many bytes will be sent."""
        ...


Chunk = memoryview | Splice


class SplicedBuffer(bytearray):
    """Encoded bytes, with splices between them.

    `splices` has the position of each splice and the splice, or is None: most responses have none,
    and making a `SplicedBuffer` must cost no more than a bytearray.
    """

    splices: list[tuple[int, Splice]] | None = None

    def splice(self, splice: Splice) -> None:
        """Insert the bytes of `splice` at the end of those encoded so far."""
        if self.splices is None:
            self.splices = []
        self.splices.append((len(self), splice))

    def size(self) -> int:
        """The size of all pieces together, in bytes."""
        if self.splices is None:
            return len(self)
        return len(self) + sum(len(splice) for _, splice in self.splices)

    def chunks(self) -> list[Chunk]:
        """All pieces in order. Those of the buffer are views, which keep it from being resized."""
        chunks: list[Chunk] = []
        view = memoryview(self)
        start = 0
        for position, splice in self.splices or ():
            if start < position:
                chunks.append(view[start:position])
            chunks.append(splice)
            start = position
        if start < len(self):
            chunks.append(view[start:])
        return chunks
