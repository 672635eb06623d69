"""What the clients of a cluster did and saw: the events that the checker judges.

A history is a file with an event a line, each a JSON array that begins with the event's name. Times
are the host's wall clock in seconds, as clients in several processes and languages write them.

A value says who sent it, to which partition and as which number, and ends with a CRC of that, so
that a reader can tell a record that was cut or mixed up from one that is only unexpected.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, NamedTuple, TypeAlias

OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"
TORN = "torn"
VALUE_BYTES = 120


class Sent(NamedTuple):
    """A producer gave a record to its client."""

    at_s: float
    producer: str
    partition: int
    number: int


class Answered(NamedTuple):
    """What the producer was told of it: OK with its offset, REFUSED for good, or UNKNOWN.

    The offset is -1 if it is not known: librdkafka knows by the next batch's acknowledgement that
    an earlier one is there whose own was lost.
    """

    at_s: float
    producer: str
    partition: int
    number: int
    outcome: str
    offset: int
    error: str


class Began(NamedTuple):
    """A reader will read a partition from this offset on."""

    at_s: float
    reader: str
    partition: int
    offset: int


class Read(NamedTuple):
    """A reader was given a record; `value` is as `identity` has it."""

    at_s: float
    reader: str
    partition: int
    offset: int
    value: str


class Reset(NamedTuple):
    """A reader was told that its position is outside the log."""

    at_s: float
    reader: str
    partition: int
    error: str


class Committed(NamedTuple):
    """A group's commit was acknowledged."""

    at_s: float
    group: str
    partition: int
    offset: int


class Fetched(NamedTuple):
    """Somebody asked for a group's committed offset, and was told this; -1001 if there is none."""

    at_s: float
    asked_s: float
    group: str
    partition: int
    offset: int


class Finished(NamedTuple):
    """A last reader has read each partition from its start to its end, after all was healed."""

    at_s: float
    reader: str


Event: TypeAlias = Sent | Answered | Began | Read | Reset | Committed | Fetched | Finished
KINDS: dict[str, type[Event]] = {
    kind.__name__.lower(): kind
    for kind in (Sent, Answered, Began, Read, Reset, Committed, Fetched, Finished)
}


def value_of(producer: str, partition: int, number: int, size: int = VALUE_BYTES) -> bytes:
    """The value of a record: its identity, padding and a CRC."""
    text = f"{producer} {partition} {number} ".encode().ljust(size, b".")
    return text + b"%08x" % zlib.crc32(text)


def identity(value: bytes | None) -> str:
    """`producer partition number` of a value, or TORN if its CRC is not that of its text."""
    text, crc = (value or b"")[:-8], (value or b"")[-8:]
    if crc != b"%08x" % zlib.crc32(text):
        return TORN
    return " ".join(text.decode().split(" ")[:3])


class Journal:
    """Writes events to a file as they come, from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._lock = threading.Lock()

    def note(self, event: Event) -> None:
        """Write an event."""
        line = json.dumps([type(event).__name__.lower(), *event])
        with self._lock:
            self._file.write(line + "\n")

    def close(self) -> None:
        """Write no more."""
        self._file.close()


def read_events(lines: Iterable[str] | IO[str]) -> list[Event]:
    """The events of a file; a last line that was cut is left out."""
    events: list[Event] = []
    for line in lines:
        if not line.endswith("]\n"):
            break
        name, *fields = json.loads(line)
        events.append(KINDS[name](*fields))
    return events


def load(paths: Iterable[Path]) -> list[Event]:
    """The events of several files, in the order of their times."""
    events: list[Event] = []
    for path in paths:
        with path.open() as lines:
            events += read_events(lines)
    return sorted(events, key=lambda event: event.at_s)


def now_s() -> float:
    """The time of an event."""
    return time.time()
