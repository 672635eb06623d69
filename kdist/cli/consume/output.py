"""How `kdist consume` shows records: as lines, as JSON, or by a format. Bytes stay as they are."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from kdist.cli.shared.options import json_text
from kdist.model import TopicPartition

if TYPE_CHECKING:
    from kdist.client.consumer.batch import Batch
    from kdist.records.record import Record

Show = Callable[["Batch", "Record"], bytes]
"""What is written for a record."""

# A format's tokens are those of kcat's -f.
_TOKENS: dict[str, Callable[[TopicPartition, Record, bytes], bytes]] = {
    "s": lambda _, record, null: null if record.value is None else record.value,
    "S": lambda _, record, __: b"%d" % _length(record.value),
    "R": lambda _, record, __: _length(record.value).to_bytes(4, "big", signed=True),
    "k": lambda _, record, null: null if record.key is None else record.key,
    "K": lambda _, record, __: b"%d" % _length(record.key),
    "T": lambda _, record, __: b"%d" % record.timestamp,
    "h": lambda _, record, null: _headers(record, null or b"NULL"),
    "t": lambda partition, _, __: partition.topic.encode(),
    "p": lambda partition, _, __: b"%d" % partition.partition,
    "o": lambda _, record, __: b"%d" % record.offset,
}
_PART = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)|([^%\\]+|\\$)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t"}


class Look(NamedTuple):
    """The options that say how records are shown."""

    as_json: bool = False
    keys: bool = False
    format: str | None = None
    null: bytes | None = None

    def show(self) -> Show:
        """The function that does; `click.BadParameter` for a format with an unknown token."""
        if self.as_json:
            return _json_line
        if self.format is not None:
            return _formatted(self.format, self.null or b"")
        null = self.null or b""
        if self.keys:
            return lambda _, record: (
                b"%b\t%b\n"
                % (
                    null if record.key is None else record.key,
                    null if record.value is None else record.value,
                )
            )
        return lambda _, record: (null if record.value is None else record.value) + b"\n"


def _json_line(batch: Batch, record: Record) -> bytes:
    from kdist.cli.shared.record_lines import json_record

    where = {"topic": batch.partition.topic, "partition": batch.partition.partition}
    row = {**where, **json_record(batch.header, record)}
    return f"{json_text(row)}\n".encode()


def _formatted(text: str, null: bytes) -> Show:
    parts = [_part(found) for found in _PART.finditer(text)]

    def show(batch: Batch, record: Record) -> bytes:
        partition = batch.partition
        return b"".join(
            part if isinstance(part, bytes) else part(partition, record, null) for part in parts
        )

    return show


def _part(found: re.Match[str]) -> bytes | Callable[[TopicPartition, Record, bytes], bytes]:
    """A part of a format: its bytes, or what gives them for a record."""
    token, escape, plain = found.groups()
    if plain is not None:
        return plain.encode(errors="surrogateescape")  # any bytes
    if escape is not None:
        if escape[0] == "x" and len(escape) > 1:
            return bytes([int(escape[1:], 16)])
        if escape.isdigit():
            return bytes([int(escape, 8) & 255])
        return _ESCAPES.get(escape, escape.encode(errors="surrogateescape"))
    if token == "%":
        return b"%"
    if token not in _TOKENS:
        known = " ".join(f"%{each}" for each in (*_TOKENS, "%"))
        raise click.BadParameter(f"%{token} is none of {known}.", param_hint="'--format'")
    return _TOKENS[token]


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: Record, null: bytes) -> bytes:
    pairs = ((name.encode(), null if value is None else value) for name, value in record.headers)
    return b",".join(b"%b=%b" % pair for pair in pairs)


class Output:
    """Shows records, up to a limit. Owner: the command."""

    def __init__(self, show: Show, limit: int | None) -> None:
        self._show = show
        self._left = limit
        self._stream = sys.stdout.buffer

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return self._left == 0

    def show(self, batch: Batch, end: int | None) -> int:
        """Show the records before the offset `end`; returns the offset from which on none is."""
        records: Sequence[Record] = batch.raw_records()
        position = batch.end
        if end is not None and end < position:
            position = max(end, batch.start)
            records = [each for each in records if each.offset < end]
        if self._left is not None:
            if self._left < len(records):
                position = records[self._left].offset
                records = records[: self._left]
            self._left -= len(records)
        self._stream.write(b"".join([self._show(batch, record) for record in records]))
        self._stream.flush()
        return position
