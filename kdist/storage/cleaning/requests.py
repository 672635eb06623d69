"""What the broker asks of its cleaner process, and what that answers: values, and lines of JSON.

A pass over a log is one `MapKeys`, `NoteProducers` if it has producers, then a `Rewrite` for each
group of segments; each is answered before the next is asked. `Report.fault` says why a request
failed; then the pass is over.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from typing import NamedTuple

from kdist.config.kinds import INT64_MAX
from kdist.errors import CorruptRecords


class Source(NamedTuple):
    """A segment to read: its whole batches take `size` bytes."""

    base_offset: int
    size: int


class MapKeys(NamedTuple):
    """Note the last offset of each key in the dirty section, of the `sources` from `dirty` on.

    The sources reach to the log's end: transactions may be ended beyond what is cleaned.
    """

    directory: str
    sources: tuple[Source, ...]
    first_dirty_offset: int
    end_offset: int  # the dirty section ends here, where one of the sources begins or the last ends
    slot_count: int
    secret: str  # 16 bytes, in hexadecimal
    bytes_per_second: int


class NoteProducers(NamedTuple):
    """Note some producers whose last batch, or marker, stays. Several times, if there are many."""

    producers: tuple[tuple[int, int], ...]  # id, and last offset of its last batch
    unmarked: tuple[tuple[int, int], ...]  # id and epoch of those that have only ended transactions


class Rewrite(NamedTuple):
    """Write what stays of some segments, which follow each other, to one `.cleaned`."""

    sources: tuple[Source, ...]
    modified_ms: int
    index_interval_bytes: int
    now_ms: int
    delete_retention_ms: int
    expires: bool  # whether tombstones past their horizon may go
    bytes_per_second: int = INT64_MAX


class Fault(enum.StrEnum):
    """Why a request failed."""

    GONE = "gone"  # a file is not there: the log was deleted or truncated
    DAMAGED = "damaged"  # the log cannot be read
    FULL = "full"  # no room on the disk, or no file descriptor
    DISK = "disk"  # the disk failed
    DIED = "died"  # the process has ended; no report of its own


class Report(NamedTuple):
    """The answer. Of a `MapKeys`, `end_offset` is up to where keys were noted."""

    fault: str = ""
    reason: str = ""
    end_offset: int = 0
    keys: int = 0
    is_changed: bool = False  # a `.cleaned` is there, of `size` bytes
    size: int = 0
    seen_records: int = 0
    kept_records: int = 0
    read_bytes: int = 0


Request = MapKeys | NoteProducers | Rewrite
_KINDS: dict[str, Callable[..., Request]] = {
    each.__name__: each for each in (MapKeys, NoteProducers, Rewrite)
}


def encode_request(request: Request) -> bytes:
    """One line."""
    return json.dumps([type(request).__name__, request]).encode() + b"\n"


def decode_request(line: bytes) -> Request:
    """The request in a line that `encode_request` made."""
    kind, fields = json.loads(line)
    values = [_tuples(each) for each in fields]
    request = _KINDS[kind](*values)
    if isinstance(request, NoteProducers):
        return request
    return request._replace(sources=tuple(Source(*each) for each in request.sources))


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def encode_report(report: Report) -> bytes:
    """One line."""
    return json.dumps(report).encode() + b"\n"


def decode_report(line: bytes) -> Report:
    """The report in a line; `CorruptRecords` if it is none."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    types = [type(default) for default in Report()]
    if not isinstance(fields, list) or [type(each) for each in fields] != types:
        raise CorruptRecords(f"{line[:80]!r} is no report of a cleaner")
    report = Report(*fields)
    if report.fault not in ("", *Fault):
        raise CorruptRecords(f"{report.fault[:80]!r} is no fault of a cleaner's report")
    return report
