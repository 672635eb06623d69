"""Record bytes that an answer names but does not copy: they go from file to socket by sendfile.

A fetch response is a few hundred bytes around megabytes of record batches. Its record sets may be
`Splice`s: anything with a length that the network knows how to send. `SplicedBuffer` is what the
encoder writes to then: it notes where each splice belongs, and `chunks` gives all pieces in order.
"""

from __future__ import annotations

from typing import Protocol


class Splice(Protocol):
    """Bytes that are somewhere else, as a range of a segment file."""

    def __len__(self) -> int:
        """How many bytes will be sent."""
        ...


Chunk = memoryview | Splice


class SplicedBuffer(bytearray):
    """Encoded bytes with places where splices go between them.

    `splices` has the position and the splice of each, or is None: most answers have none, and
    making one must cost no more than making a bytearray.
    """

    splices: list[tuple[int, Splice]] | None = None

    def splice(self, splice: Splice) -> None:
        """Say that the bytes of `splice` come here."""
        if self.splices is None:
            self.splices = []
        self.splices.append((len(self), splice))

    def size(self) -> int:
        """How many bytes all pieces have together."""
        if self.splices is None:
            return len(self)
        return len(self) + sum(len(splice) for _, splice in self.splices)

    def chunks(self) -> list[Chunk]:
        """All pieces in order; those of the buffer itself are views that pin it."""
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
