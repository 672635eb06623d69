"""Texts that people write, in Java's .properties format and in JSON (pure).

A name given twice is a fault, where Java and JSON's readers take the last without a word. Of a
.properties file, it names both lines.

| in the text                              | means                                           |
|------------------------------------------|-------------------------------------------------|
| `name=value`, `name:value`, `name value` | a setting; blanks around the separator drop out |
| `#` or `!` first                         | a comment to the end of the line                |
| a backslash at the end of a line         | continues on the next line, after its blanks    |
| `\\t \\n \\r \\f \\uXXXX`                     | that character; any other `\\c` is `c`           |

Source: `java.util.Properties.load`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from kdist.config.faults import Given, sentence_at

_BLANKS = " \t\f"
_SHORT = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SEPARATOR = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_BAD_UNICODE = re.compile(r"(?<!\\)(?:\\\\)*\\u(?![0-9a-fA-F]{4})")
_LINE_END = re.compile(r"\r\n|\r|\n")


class Properties(NamedTuple):
    """A file's contents: each name with its value and line, and the file's faults."""

    given: dict[str, Given]
    faults: tuple[str, ...]


def parse_properties(text: str, source: str) -> Properties:
    """The settings in a file's text; `source` names the file in messages."""
    given: dict[str, Given] = {}
    lines: dict[str, int] = {}
    faults: list[str] = []
    for number, line in _logical_lines(text):
        if _BAD_UNICODE.search(line):
            where = f"{source}, line {number}"
            faults.append(sentence_at(where, "\\u needs four hexadecimal digits"))
            continue
        name, value = _split(line)
        if name in given:
            both = f"{source}, lines {lines[name]} and {number}"
            faults.append(sentence_at(both, f"{name} is given twice: keep one"))
            continue
        given[name] = Given(value, f"{source}, line {number}")
        lines[name] = number
    return Properties(given, tuple(faults))


def escape_properties(name: str, value: str) -> str:
    """The line that `parse_properties` reads as this name and value."""
    return f"{_escaped(name, '=: ')}={_escaped(value, '')}"


def _escaped(text: str, also: str) -> str:
    special = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
    special |= {character: "\\" + character for character in also}
    shown = "".join(special.get(character, character) for character in text)
    return "\\" + shown if shown[:1] in ("#", "!", " ") else shown


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each line that is neither blank nor a comment, joined with its continuation lines."""
    joined, start = "", 0
    for number, line in enumerate(_LINE_END.split(text), start=1):
        stripped = line.lstrip(_BLANKS)
        if not start and (not stripped or stripped[0] in "#!"):
            continue
        start = start or number
        if _is_continued(stripped):
            joined += stripped[:-1]
            continue
        yield start, joined + stripped
        joined, start = "", 0
    if joined:
        yield start, joined


def _is_continued(line: str) -> bool:
    """Whether a line ends in an odd number of backslashes: the last one escapes the line's end."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    found = _SEPARATOR.match(line)
    assert found, "every text matches"
    return _unescaped(found[1]), _unescaped(line[found.end() :])


def _unescaped(text: str) -> str:
    def plain(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _SHORT.get(code, code)

    return _ESCAPE.sub(plain, text)


class NameTwice(ValueError):
    """An object of a JSON text gives a name twice."""


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; `NameTwice`, or another `ValueError` if it is no JSON."""
    return json.loads(text, object_pairs_hook=_once_each)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise NameTwice(f"{twice!r} is given twice")
    return found
