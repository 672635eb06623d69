"""JSON values as Arrow columns, with a note of each value that its column does not hold (pure).

A column holds a token of the JSON text if the token could be made of what the column has: the same
text, the same number digit for digit, the same instant, the same names and items. Otherwise the
record is inexact, and keeps its bytes. A column then has the nearest value of its type, or null if
there is none. Nothing here depends on the clock, nor on a session but for its time zone. Of each
inexact record the first reason is noted, with the path of the field.

Columns are filled one after the other, inner ones too, so nothing grows in depth with their number.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from math import isfinite
from typing import Any, NamedTuple

import pyarrow
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

Token = Any
"""A JSON token: None, bool, int, `Number`, str, list or dict."""

Held = tuple[Any, bool]
"""What a column holds of a token, in a form that Arrow takes, and whether that is all of it."""

_NOTHING: Held = (None, False)
_NAME_MAX = 100  # characters of a field's name in a reason


class Number(str):
    """A number that is not written as an integer: its text."""

    __slots__ = ()


class Twice(dict[str, Token]):
    """An object that has a name twice, with the last of the values."""


Inexact = dict[int, str]
"""The numbers of the records that columns do not hold, with the first reason for each."""


class Parsed(NamedTuple):
    """The objects of some records, None for a value that is none, and which are inexact.

    A null value is no object, but exact: the bytes that it would keep are null, too.
    """

    objects: list[dict[str, Token] | None]
    inexact: Inexact


def _object(pairs: list[tuple[str, Token]]) -> dict[str, Token]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else Twice(found)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


_parse = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=Number, parse_constant=_refuse
).decode


def parse(values: Iterable[bytes | None]) -> Parsed:
    """Parse each value; one that is not exactly one JSON object is None."""
    objects: list[dict[str, Token] | None] = []
    inexact: Inexact = {}
    for row, value in enumerate(values):
        if value is None:
            objects.append(None)
            continue
        found = None
        try:
            found = _parse(str(value, "utf-8"))
        except UnicodeDecodeError:
            found = _parsed_in_part(value)
            inexact[row] = "not UTF-8"
        except (ValueError, RecursionError):
            pass
        if not isinstance(found, dict):
            found = None
            inexact.setdefault(row, "no JSON object")
        objects.append(found)
    return Parsed(objects, inexact)


def _parsed_in_part(value: bytes) -> Token:
    """The value with U+FFFD for what is not UTF-8."""
    try:
        return _parse(str(value, "utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


# Columns


class Filling(NamedTuple):
    """Where the columns of some records are filled: the zone of times without one, what was lost.

    `fill` adds to `inexact`. A `path` is where in the objects the tokens are, as `meta.ts`.
    """

    zone: tzinfo
    inexact: Inexact

    def columns(
        self, type_: t.StructType, tokens: Sequence[Token], rows: Sequence[int], path: str = ""
    ) -> list[pyarrow.Array]:
        """A column for each field of objects; `rows` are the records that the tokens are of."""
        known = {each.name for each in type_.fields}
        objects: list[dict[str, Token]] = []
        for row, token in zip(rows, tokens, strict=True):
            is_object = isinstance(token, dict)
            if token is not None:
                if not is_object:
                    self.inexact.setdefault(row, f"{path}: no object")
                elif type(token) is Twice:
                    self.inexact.setdefault(row, f"{path or 'the value'}: a name twice")
                elif not known.issuperset(token):
                    name = next(each for each in token if each not in known)
                    self.inexact.setdefault(row, f"{_within(path, name)}: no column")
            objects.append(token if is_object else {})
        return [
            self.fill(
                each.dataType,
                [found.get(each.name) for found in objects],
                rows,
                _within(path, each.name),
            )
            for each in type_.fields
        ]

    def fill(
        self, type_: t.DataType, tokens: Sequence[Token], rows: Sequence[int], path: str
    ) -> pyarrow.Array:
        """A column of the type with what it holds of each token."""
        if isinstance(type_, t.StructType):
            return self._structs(type_, tokens, rows, path)
        if isinstance(type_, t.ArrayType):
            return self._lists(type_, tokens, rows, path)
        if isinstance(type_, t.MapType):
            return self._maps(type_, tokens, rows, path)
        kinds = _AS_THEY_ARE.get(type(type_))
        if kinds is not None and kinds.issuperset(map(type, tokens)):
            try:
                return pyarrow.array(tokens, _arrow(type_))
            except (OverflowError, UnicodeEncodeError, pyarrow.ArrowInvalid):
                pass  # one of them is too large, or has an unpaired surrogate
        hold = _holder(type_, self.zone)
        values = []
        for row, token in zip(rows, tokens, strict=True):
            value, is_exact = (None, True) if token is None else hold(token)
            if not is_exact:
                self.inexact.setdefault(row, f"{path}: more than {type_.simpleString()} holds")
            values.append(value)
        return pyarrow.array(values, _arrow(type_))

    def _structs(
        self, type_: t.StructType, tokens: Sequence[Token], rows: Sequence[int], path: str
    ) -> pyarrow.Array:
        columns = self.columns(type_, tokens, rows, path)
        absent = pyarrow.array([not isinstance(each, dict) for each in tokens], pyarrow.bool_())
        fields = list(_arrow(type_))
        return pyarrow.StructArray.from_arrays(columns, fields=fields, mask=absent)

    def _lists(
        self, type_: t.ArrayType, tokens: Sequence[Token], rows: Sequence[int], path: str
    ) -> pyarrow.Array:
        lists = self._of_kind(list, tokens, rows, path)
        items = [item for each in lists if each for item in each]
        column = self.fill(type_.elementType, items, _rows_of_items(lists, rows), path)
        return pyarrow.ListArray.from_arrays(_offsets(lists), column, type=_arrow(type_))

    def _maps(
        self, type_: t.MapType, tokens: Sequence[Token], rows: Sequence[int], path: str
    ) -> pyarrow.Array:
        objects = self._of_kind(dict, tokens, rows, path)
        for row, each in zip(rows, objects, strict=True):
            if _is_twice(each):
                self.inexact.setdefault(row, f"{path}: a name twice")
        of_items = _rows_of_items(objects, rows)
        keys = [name for each in objects if each for name in each]
        items = [item for each in objects if each for item in each.values()]
        return pyarrow.MapArray.from_arrays(
            _offsets(objects),
            self.fill(type_.keyType, keys, of_items, path),
            self.fill(type_.valueType, items, of_items, path),
            type=_arrow(type_),
        )

    def _of_kind(
        self, kind: type, tokens: Sequence[Token], rows: Sequence[int], path: str
    ) -> list[Token]:
        """The tokens of a kind, and None for others."""
        for row, token in zip(rows, tokens, strict=True):
            if token is not None and not isinstance(token, kind):
                what = "list" if kind is list else "object"
                self.inexact.setdefault(row, f"{path}: no {what}")
        return [each if isinstance(each, kind) else None for each in tokens]


def _within(path: str, name: str) -> str:
    """The path of a field; a name may be as long as a record, and is cut."""
    return f"{path}.{name[:_NAME_MAX]}" if path else name[:_NAME_MAX]


def _is_twice(token: Token) -> bool:
    return type(token) is Twice


def _offsets(lists: Sequence[Sequence[Token] | None]) -> pyarrow.Array:
    """Where each list begins in the row of all items, null for None; and where the last ends."""
    offsets: list[int | None] = []
    end = 0
    for each in lists:
        offsets.append(None if each is None else end)
        end += len(each or ())
    return pyarrow.array([*offsets, end], pyarrow.int32())


def _rows_of_items(lists: Sequence[Sequence[Token] | None], rows: Sequence[int]) -> list[int]:
    return [row for row, each in zip(rows, lists, strict=True) for _ in each or ()]


def _arrow(type_: t.DataType) -> pyarrow.DataType:
    return to_arrow_type(type_, timezone="UTC")


# What a column holds of one token

_NONE = type(None)
_AS_THEY_ARE: dict[type[t.DataType], frozenset[type]] = {
    t.ByteType: frozenset({int, _NONE}),
    t.ShortType: frozenset({int, _NONE}),
    t.IntegerType: frozenset({int, _NONE}),
    t.LongType: frozenset({int, _NONE}),
    t.BooleanType: frozenset({bool, _NONE}),
    t.StringType: frozenset({str, _NONE}),
}
"""The kinds of tokens that are a type's values already."""

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DATE = re.compile(r"([+-]?[0-9]{4,7})-([0-9]{1,2})-([0-9]{1,2})")
_TIME = re.compile(
    _DATE.pattern + r"(?:[T ]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]+))?)?)?"
    r" ?(?:([Zz]|UTC|GMT)|([+-])([0-9]{1,2}):?([0-9]{2}))?"
)
_EPOCH, _EPOCH_DAY = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1)
_US = timedelta(microseconds=1)
_OFFSET_MAX = timedelta(hours=18)  # Java's and Spark's; no place on Earth has more than 14
_US_MAX = (1 << 63) - 1


def _boolean(token: Token) -> Held:
    return (token, True) if type(token) is bool else _NOTHING


def _integer(bits: int) -> Callable[[Token], Held]:
    limit = 1 << (bits - 1)

    def hold(token: Token) -> Held:
        return (token, True) if type(token) is int and -limit <= token < limit else _NOTHING

    return hold


def _is_number(token: Token) -> bool:
    return type(token) is int or type(token) is Number


def _is_same(one: str, other: str) -> bool:
    """Whether two texts are the same number."""
    try:
        return one == other or Decimal(one) == Decimal(other)
    except InvalidOperation:
        return False  # an exponent beyond all limits


def _double(token: Token) -> Held:
    if not _is_number(token):
        return _NOTHING
    value = float(str(token))
    return (value, _is_same(repr(value), str(token))) if isfinite(value) else _NOTHING


def _float(token: Token) -> Held:
    if not _is_number(token):
        return _NOTHING
    try:
        packed = struct.pack("f", float(str(token)))
    except OverflowError:
        return _NOTHING
    (value,) = struct.unpack("f", packed)
    if not isfinite(value):
        return _NOTHING
    texts = (f"{value:.{digits}e}" for digits in range(9))
    shortest = next(text for text in texts if _is_single(text, packed))
    return value, _is_same(shortest, str(token))


def _is_single(text: str, packed: bytes) -> bool:
    """Whether a number in single precision is `packed`."""
    try:
        return struct.pack("f", float(text)) == packed
    except OverflowError:
        return False


def _decimal(precision: int, scale: int) -> Callable[[Token], Held]:
    context = Context(prec=precision, rounding=ROUND_HALF_UP)
    quantum = Decimal(1).scaleb(-scale)

    def hold(token: Token) -> Held:
        if not _is_number(token) and not (type(token) is str and _NUMBER.fullmatch(token)):
            return _NOTHING
        try:
            number = Decimal(token)
            value = number.quantize(quantum, context=context)
        except InvalidOperation:
            return _NOTHING  # more digits before the point than the type has
        return value, value == number

    return hold


def _string(token: Token) -> Held:
    try:
        text = token if type(token) is str else text_of(token)
        is_exact = not _has_twice(token)
    except RecursionError:
        return _NOTHING
    return in_utf8(text), is_exact and in_utf8(text) == text


def in_utf8(text: str) -> str:
    """The text with `?` for each unpaired surrogate, which UTF-8 has no bytes for."""
    return text.encode("utf-8", "replace").decode()


def _has_twice(token: Token) -> bool:
    if isinstance(token, list):
        return any(_has_twice(each) for each in token)
    return isinstance(token, dict) and (
        _is_twice(token) or any(_has_twice(each) for each in token.values())
    )


def text_of(token: Token) -> str:
    """A token as JSON, with its numbers as they were written, and none of its spaces."""
    if type(token) is Number:
        return str(token)
    if isinstance(token, list):
        return f"[{','.join(text_of(each) for each in token)}]"
    if isinstance(token, dict):
        pairs = (f"{text_of(name)}:{text_of(each)}" for name, each in token.items())
        return f"{{{','.join(pairs)}}}"
    return json.dumps(token, ensure_ascii=False)


def _binary(token: Token) -> Held:
    if type(token) is not str:
        return _NOTHING
    try:
        value = base64.b64decode(token, validate=True)
    except (binascii.Error, ValueError):
        return _NOTHING
    return value, base64.b64encode(value).decode() == token


def _day(token: Token) -> Held:
    found = _TIME.fullmatch(token) if type(token) is str else None
    if found is None:
        return _NOTHING
    try:
        day = date(*map(int, found.groups()[:3]))
    except ValueError:
        return _NOTHING
    return day, not any(found.groups()[3:])


def _timestamp(zone: tzinfo | None) -> Callable[[Token], Held]:
    """Microseconds since 1970; without a `zone`, of a local time, whose text may name none."""

    def hold(token: Token) -> Held:
        if type(token) is int and zone is not None:  # seconds
            return (token * 1_000_000, True) if abs(token) * 1_000_000 <= _US_MAX else _NOTHING
        found = _TIME.fullmatch(token) if type(token) is str else None
        if found is None:
            return _NOTHING
        year, month, day, hour, minute, second, fraction, utc, sign, hours, minutes = found.groups()
        if zone is None and (utc or sign):
            return _NOTHING
        try:
            local = datetime(int(year), int(month), int(day))
            local = local.replace(hour=int(hour or 0), minute=int(minute or 0))
            us = int((fraction or "0")[:6].ljust(6, "0"))
            local = local.replace(second=int(second or 0), microsecond=us)
            offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
            is_there = True  # and not a time that clocks were put forward over
            if offset > _OFFSET_MAX or int(minutes or 0) > 59:
                return _NOTHING
            if utc or sign or zone is None:
                at = local.replace(tzinfo=UTC) - (-offset if sign == "-" else offset)
            else:
                at = local.replace(tzinfo=zone).astimezone(UTC)
                is_there = at.astimezone(zone).replace(tzinfo=None) == local
        except (ValueError, OverflowError):
            return _NOTHING
        return (at - _EPOCH) // _US, is_there and not (fraction or "")[6:].strip("0")

    return hold


def _holder(type_: t.DataType, zone: tzinfo) -> Callable[[Token], Held]:
    if isinstance(type_, t.DecimalType):
        return _decimal(type_.precision, type_.scale)
    if isinstance(type_, t.TimestampType):
        return _timestamp(zone)
    return _HOLDERS[type(type_)]


_HOLDERS: dict[type[t.DataType], Callable[[Token], Held]] = {
    t.BooleanType: _boolean,
    t.ByteType: _integer(8),
    t.ShortType: _integer(16),
    t.IntegerType: _integer(32),
    t.LongType: _integer(64),
    t.FloatType: _float,
    t.DoubleType: _double,
    t.StringType: _string,
    t.BinaryType: _binary,
    t.DateType: _day,
    t.TimestampNTZType: _timestamp(None),
}


def unheld(type_: t.DataType) -> str | None:
    """The type, or the one within it, that no column of a load can have; None if there is none."""
    if isinstance(type_, t.StructType):
        found = (unheld(each.dataType) for each in type_.fields)
        return next((each for each in found if each), None)
    if isinstance(type_, t.ArrayType):
        return unheld(type_.elementType)
    if isinstance(type_, t.MapType):
        is_named = isinstance(type_.keyType, t.StringType)
        return unheld(type_.valueType) if is_named else type_.simpleString()
    is_held = type(type_) in {*_HOLDERS, t.DecimalType, t.TimestampType}
    return None if is_held else type_.simpleString()


# Event times

_LATEST_S = 253_402_300_799  # the end of the year 9999: a larger number is not taken for a time


class EventTime(NamedTuple):
    """Where a topic's records have their event time, and how it is written."""

    path: str
    format: str

    def found(
        self, objects: Iterable[dict[str, Token] | None]
    ) -> tuple[list[int | None], list[str | None]]:
        """For each record its event time as µs since 1970, or as text that Spark has to parse.

        Both are None if there is no event time: no such field, of another type, without a date.
        """
        times: list[int | None] = []
        texts: list[str | None] = []
        for each in objects:
            token = _at(self.path, each)
            times.append(self._time(token))
            texts.append(self._text(token))
        return times, texts

    def _time(self, token: Token) -> int | None:
        is_auto = self.format == "auto"
        if not is_auto and self.format not in ("ms", "s"):
            return None
        is_text = type(token) is str and not is_auto and bool(_NUMBER.fullmatch(token.strip()))
        if not _is_number(token) and not is_text:
            return None
        try:
            seconds = Decimal(token) / (1 if self.format == "s" else 1000)
        except ArithmeticError:  # an exponent beyond all limits
            return None
        return int(seconds * 1_000_000) if abs(seconds) <= _LATEST_S else None

    def _text(self, token: Token) -> str | None:
        if self.format in ("ms", "s") or type(token) not in (str, int, Number):
            return None
        text = str(token).strip()
        if self.format == "auto":  # Spark would take a time of day for one of today's
            has_date = type(token) is str and _DATE.match(text)
            return text if has_date and text[has_date.end() :][:1] in ("", "T", " ") else None
        return in_utf8(text)


def _at(path: str, token: Token) -> Token:
    """What is at a path in an object: the field of that name, else one within others."""
    names = [path] if isinstance(token, dict) and path in token else path.split(".")
    for name in names:
        token = token.get(name) if isinstance(token, dict) else None
    return token
