"""What a topic that one connection alone writes to must hold, told from what was asked on it.

A log here is changed when a request is written down, not when it is answered: requests of one
connection are carried out in their order, so each finds what stands before it done.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import NamedTuple

_PLACE = struct.Struct(">qii")  # base offset, length, leader epoch
_LENGTH_PREFIX = 12
BATCH_BYTES_MAX = 1_048_588  # the default of message.max.bytes


class Sent(NamedTuple):
    """A batch in a log: its offsets, and its bytes as they are there."""

    start: int
    end: int
    content: bytes


class Log:
    """One partition."""

    def __init__(self) -> None:
        self.start = 0
        self.batches: list[Sent] = []
        self.sequence = 0  # of the idempotent producer's next record
        self.latest = (b"", 0)  # its latest batch, and at which offset that is
        self.shown = 0  # to this offset records are visible to who asks now
        self.changes = 0  # of what is not appended: a fetch that waits meanwhile may find anything

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    def append(self, content: bytes, records: int) -> int:
        """At which offset."""
        start = self.end
        (_, length, _) = _PLACE.unpack_from(content)
        stored = _PLACE.pack(start, length, 0) + content[_PLACE.size :]
        self.batches.append(Sent(start, start + records, stored))
        return start

    def difference(self, offset: int, records: bytes, end: int | None = None) -> str:
        """What is wrong about records that a fetch from `offset` gave; `end`: of the log then."""
        first = bisect_right(self.batches, offset, key=lambda sent: sent.start) - 1
        at = 0
        for sent in self.batches[max(0, first) :]:
            if at >= len(records):
                return ""
            if end is not None and sent.start >= end:
                return f"a batch at {sent.start}, where the log ended at {end}"
            found = records[at : at + len(sent.content)]
            if found != sent.content[: len(found)]:
                return f"other bytes in the batch at {sent.start}: {_place(found)}"
            at += len(found)
        return f"{len(records) - at} bytes too many" if at < len(records) else ""


def _place(found: bytes) -> str:
    return str(_PLACE.unpack_from(found)) if len(found) >= _PLACE.size else found.hex()


def whole_end(records: bytes, offset: int) -> int:
    """The offset behind the last whole batch of `records`."""
    at = 0
    while len(records) - at > 61:
        base, length, _ = _PLACE.unpack_from(records, at)
        if at + _LENGTH_PREFIX + length > len(records):
            break
        (last,) = struct.unpack_from(">i", records, at + 23)
        offset = base + last + 1
        at += _LENGTH_PREFIX + length
    return offset


class Topic:
    """A topic of the connection's own; `logs` is empty while there is none of that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.logs: list[Log] = []
        self.setting = ""
        self.incarnation = 0

    def create(self, partitions: int) -> None:
        self.logs = [Log() for _ in range(partitions)]
        self.setting = ""
        self.incarnation += 1

    def delete(self) -> None:
        for log in self.logs:
            log.changes += 1
        self.logs = []
        self.incarnation += 1
