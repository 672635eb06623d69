"""What `kdist produce` reads: lines of text or of JSON, each a record (pure).

A line of JSON is an object as `kdist consume --json` prints it. `topic` and `offset` are ignored,
so that what was consumed can be produced again; of the others only `value` must be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

from kdist.cli.shared.connecting import check_partition
from kdist.client.cluster import did_you_mean
from kdist.client.producer.arguments import TIMESTAMP_END
from kdist.config.texts import parse_json
from kdist.errors import UserError
from kdist.model import NO_TIMESTAMP

Headers = tuple[tuple[str, bytes | None], ...]

_FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_BYTES = 'a string, null, or {"hex": "00ff"}'


class BadLine(UserError):
    """The line of this number, the first is 1, is no record."""

    def __init__(self, number: int, sentence: str) -> None:
        super().__init__(f"line {number}{sentence}")
        self.number = number


class Row(NamedTuple):
    """A record to send; the fields are in the order of `Producer.send`."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None


class Columns(NamedTuple):
    """Records to send: columns are several times as fast as a row for each.

    `rows` are for records that have more than key and value, and then stand for all.
    """

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    rows: Sequence[Row] | None = None


class Fixed(NamedTuple):
    """What options give to every record; it takes the place of what a line says.

    `headers` come before a line's own.
    """

    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None

    @property
    def has_more(self) -> bool:
        """Whether records get more than a key."""
        return bool(self.headers) or self.partition is not None or self.timestamp is not None

    def of(self, row: Row) -> Row:
        """The record to send for a line's."""
        return Row(
            row.value,
            row.key if self.key is None else self.key,
            (*self.headers, *row.headers),
            row.partition if self.partition is None else self.partition,
            row.timestamp if self.timestamp is None else self.timestamp,
        )


class TextLines(NamedTuple):
    """A line is a value, or key and value around the separator; one that is `null` is a null."""

    fixed: Fixed
    separator: bytes | None = None
    null: bytes | None = None

    def read(self, lines: Sequence[bytes], number: int) -> Columns:
        """The records; the first line has this number. `BadLine` for a line that is none."""
        keys, values = self._split(lines, number)
        if self.fixed.key is not None:
            keys = [self.fixed.key] * len(lines)
        if not self.fixed.has_more:
            return Columns(values, keys)
        pairs = zip(values, keys or repeat(None), strict=False)
        return Columns((), rows=[Row(value, key, *self.fixed[1:]) for value, key in pairs])

    def _split(
        self, lines: Sequence[bytes], number: int
    ) -> tuple[Sequence[bytes | None] | None, Sequence[bytes | None]]:
        if self.separator is None:
            return None, self._with_nulls(lines)
        parted = [line.partition(self.separator) for line in lines]
        for at, (_, found, _) in enumerate(parted, number):
            if not found:
                separator = self.separator.decode(errors="replace")
                raise BadLine(at, f" has no {separator!r} between key and value")
        keys, values = [key for key, _, _ in parted], [value for _, _, value in parted]
        return self._with_nulls(keys), self._with_nulls(values)

    def _with_nulls(self, texts: Sequence[bytes]) -> Sequence[bytes | None]:
        null = self.null
        return texts if null is None else [None if text == null else text for text in texts]


class JsonLines(NamedTuple):
    """A line is a record as JSON, for a topic with so many partitions."""

    fixed: Fixed
    topic: str
    partitions: int

    def read(self, lines: Sequence[bytes], number: int) -> Columns:
        """As `TextLines.read`."""
        rows = []
        for at, line in enumerate(lines, number):
            try:
                row = self.fixed.of(read_row(line))
                check_partition(self.topic, row.partition, self.partitions)
            except UserError as error:
                raise BadLine(at, f": {error}") from None
            rows.append(row)
        return Columns((), rows=rows)


def read_row(line: bytes) -> Row:
    """The record of a line of JSON; `UserError` for what is none."""
    found = _parsed(line)
    if not isinstance(found, dict):
        raise UserError("it is no JSON object")
    for name in found:
        if name not in _FIELDS:
            raise UserError(f"a record has no {name!r}{did_you_mean(name, _FIELDS)}")
    if "value" not in found:
        raise UserError("it has no value; of a tombstone that is null")
    return Row(
        _bytes(found["value"], "value"),
        _bytes(found.get("key"), "key"),
        _headers(found.get("headers")),
        _number(found.get("partition"), "partition", "a partition's number"),
        _timestamp(found.get("timestamp")),
    )


def _parsed(line: bytes) -> Any:
    try:
        return parse_json(line.decode())
    except UnicodeDecodeError:
        raise UserError("it is not UTF-8 text") from None
    except RecursionError:
        raise UserError("its objects are nested too deeply") from None
    except ValueError as error:
        raise UserError(f"it is no JSON: {str(error).partition(': line')[0].lower()}") from None


def _bytes(found: Any, what: str) -> bytes | None:
    if found is None:
        return None
    try:
        if isinstance(found, str):
            return found.encode()
        if isinstance(found, dict) and found.keys() == {"hex"} and isinstance(found["hex"], str):
            return bytes.fromhex(found["hex"])
    except ValueError:  # half a character, or no hexadecimal digits
        pass
    raise UserError(f"the {what} must be {_BYTES}")


def _headers(found: Any) -> Headers:
    rows = [] if found is None else found
    if not isinstance(rows, list) or not all(
        isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) for each in rows
    ):
        raise UserError('headers must be pairs, as in [["name", "value"]]')
    return tuple((header_name(name), _bytes(value, "header's value")) for name, value in rows)


def header_name(name: str) -> str:
    """The name; `UserError` if UTF-8 cannot encode it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UserError("a header's name must be UTF-8 text") from None
    return name


def _timestamp(found: Any) -> int | None:
    """Milliseconds; `kdist consume` shows -1 where a record of old has none."""
    is_none = found == NO_TIMESTAMP and not isinstance(found, bool)
    return None if is_none else _number(found, "timestamp", "milliseconds since 1970")


def _number(found: Any, what: str, noun: str) -> int | None:
    if found is None:
        return None
    if type(found) is not int or not 0 <= found < TIMESTAMP_END:
        raise UserError(f"the {what} must be {noun}")
    return found
