"""The kinds of value a setting can have: text to value and back (pure).

| annotation                    | kind     | text                                     |
|-------------------------------|----------|------------------------------------------|
| `int32`, `int64`              | INT, LONG | decimal digits, an optional sign        |
| `float`                       | DOUBLE   | as Java's `Double.parseDouble`, finite   |
| `bool`                        | BOOLEAN  | `true` or `false`, in any case           |
| `str`, `Literal[...]`         | STRING   | itself; a `Literal` lists what is allowed |
| `tuple[str, ...]`, `tuple[Literal[...], ...]` | LIST | items between commas, as `split_list` |
| `secret`                      | PASSWORD | itself, never shown                      |
"""

from __future__ import annotations

import enum
import math
import re
import types
import typing
from typing import Annotated, Any, Literal, NamedTuple

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

_INTEGER = re.compile(r"[+-]?[0-9]+")
_ITEM = re.compile(r"(?:\{[0-9]*,[0-9]*\}|[^,])*")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Kind(enum.IntEnum):
    """The kind of a value; the numbers are `ConfigType` in DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


int32 = Annotated[int, Kind.INT]
int64 = Annotated[int, Kind.LONG]
secret = Annotated[str, Kind.PASSWORD]

LIMITS = {Kind.INT: (-INT32_MAX - 1, INT32_MAX), Kind.LONG: (-INT64_MAX - 1, INT64_MAX)}
NOUNS = {
    Kind.BOOLEAN: "'true' or 'false'",
    Kind.INT: "an integer",
    Kind.LONG: "an integer",
    Kind.DOUBLE: "a number",
}


class Shape(NamedTuple):
    """What an annotation says: the kind, the choices (empty: any text), whether None is valid."""

    kind: Kind
    choices: tuple[str, ...] = ()
    nullable: bool = False


def shape_of(hint: Any) -> Shape:
    """The shape that a setting's annotation (resolved, with extras) stands for."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Annotated:
        return Shape(arguments[1])
    if origin is Literal:
        return Shape(Kind.STRING, arguments)
    if origin is tuple:
        return Shape(Kind.LIST, shape_of(arguments[0]).choices)
    if origin is types.UnionType or origin is typing.Union:
        (given,) = (each for each in arguments if each is not types.NoneType)
        return shape_of(given)._replace(nullable=True)
    return Shape({bool: Kind.BOOLEAN, float: Kind.DOUBLE, str: Kind.STRING}[hint])


def read_text(kind: Kind, text: str) -> Any:
    """The value that `text` stands for; `ValueError` if it is not of this kind."""
    text = text.strip()
    if kind in LIMITS:
        return int(_matched(_INTEGER, text))
    if kind is Kind.DOUBLE:
        return _finite(float(_matched(_FLOAT, text)))
    if kind is Kind.BOOLEAN:
        return {"true": True, "false": False}[_matched(re.compile("(?i)true|false"), text).lower()]
    if kind is Kind.LIST:
        return split_list(text)
    return text


def split_list(text: str) -> tuple[str, ...]:
    """The items between commas. The comma of a regular expression's `{1,2}` separates none."""
    items, at = [], 0
    while text and at <= len(text):
        found = _ITEM.match(text, at)
        assert found is not None, "it matches nothing, too"
        items.append(found[0].strip())
        at = found.end() + 1
    return tuple(items)


def show_text(value: Any) -> str:
    """The text of `value` in a file and in DescribeConfigs; the inverse of `read_text`."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def _matched(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(text)
    return text


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(number)
    return number
