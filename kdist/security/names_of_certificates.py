"""Whose a certificate is: the text of its subject as Java writes it, and the user that it maps to.

The text is `X500Principal.getName()` of Java, after RFC 2253, since ACLs and rules of Apache Kafka
name it: the most specific part first, nine attributes by a keyword, all others as `OID=#hex`.
Mapping rules are those of `ssl.principal.mapping.rules` (KIP-371).

A certificate is read here, as DER (X.690), and not by a library: what cannot be read is refused,
and nothing that a peer put into another field can matter.
"""

from __future__ import annotations

import re
import warnings
from calendar import timegm
from collections.abc import Callable, Iterator
from typing import NamedTuple

NAME_CHARS_MAX = 4096  # a rule is applied to no longer name

_SEQUENCE, _SET, _OID = 0x30, 0x31, 0x06
_VERSION = 0xA0
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
# UTF8, Printable, T61, IA5, General and BMPString. Java reads all of them as UTF-8.
_TEXTS = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E))
_ESCAPED = re.compile(r'[,=+<>#;"\\]')
_OUTER_BLANKS = re.compile(r"\A[ \r]+|[ \r]+\Z")


class _Value(NamedTuple):
    """A value of DER: its tag, its content, and all of its bytes."""

    tag: int
    content: bytes
    whole: bytes


def _values(data: bytes) -> Iterator[_Value]:
    """The values that follow each other in `data`; `ValueError` if it is not DER."""
    at = 0
    while at < len(data):
        start = at + 2
        size = data[at + 1] if start <= len(data) else -1
        if size > 0x80:  # the length's own length
            start += size - 0x80
            size = int.from_bytes(data[at + 2 : start]) if size <= 0x84 else -1
        elif size == 0x80:
            size = -1
        if size < 0 or start + size > len(data):
            raise ValueError("not DER")
        yield _Value(data[at], data[start : start + size], data[at : start + size])
        at = start + size


def _expect(value: _Value, tag: int) -> bytes:
    if value.tag != tag:
        raise ValueError("not a certificate")
    return value.content


def _fields(certificate: bytes) -> list[_Value]:
    """From the serial number on: 3 is the validity, 4 the subject."""
    whole = next(_values(certificate), None)
    if whole is None:
        raise ValueError("not a certificate")
    signed = next(_values(_expect(whole, _SEQUENCE)), whole)
    fields = list(_values(_expect(signed, _SEQUENCE)))
    if fields and fields[0].tag == _VERSION:
        del fields[0]
    if len(fields) < 6:
        raise ValueError("not a certificate")
    return fields


def end_of_certificate(certificate: bytes) -> float:
    """When a certificate ends, in seconds since the epoch; `ValueError` if it cannot be read."""
    times = list(_values(_expect(_fields(certificate)[3], _SEQUENCE)))
    if len(times) != 2 or times[1].tag not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError("not a certificate")
    text = times[1].content.decode("ascii")
    if times[1].tag == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text  # RFC 5280, 4.1.2.5.1
    found = re.fullmatch(r"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)Z", text, re.ASCII)
    if found is None:
        raise ValueError("not a certificate")
    return float(timegm(tuple(map(int, found.groups()))))


def name_of_certificate(certificate: bytes) -> str:
    """The subject of a certificate, as Java writes it; `ValueError` if it cannot be read."""
    parts = list(_values(_expect(_fields(certificate)[4], _SEQUENCE)))
    return ",".join(
        "+".join(_attribute(each) for each in _values(_expect(part, _SET)))
        for part in reversed(parts)
    )


def _attribute(value: _Value) -> str:
    pair = list(_values(_expect(value, _SEQUENCE)))
    if len(pair) != 2:
        raise ValueError("not a certificate")
    oid, content = _oid(_expect(pair[0], _OID)), pair[1]
    keyword = _KEYWORDS.get(oid)
    if keyword is None or content.tag not in _TEXTS:
        return f"{keyword or oid}=#{content.whole.hex()}"
    text = _ESCAPED.sub(r"\\\g<0>", content.content.decode("utf-8", "replace"))
    text = text.replace("\0", r"\00")
    return f"{keyword}={_OUTER_BLANKS.sub(_escape_each, text)}"


def _escape_each(blanks: re.Match[str]) -> str:
    return "".join("\\" + each for each in blanks[0])


def _oid(content: bytes) -> str:
    """The numbers of an object identifier, with dots between (X.690, 8.19)."""
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers or content[-1] & 0x80:
        raise ValueError("not a certificate")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)"
    r"|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<fold>[LU]?))?"
    r"\s*(?:,|\Z)",
    re.ASCII,
)
_FOLDS: dict[str, Callable[[str], str]] = {"": str, "L": str.lower, "U": str.upper}
_REPLACED = re.compile(r"\\(?P<literal>.)|\$(?P<digits>[0-9]+)|(?P<wrong>[\\$])", re.DOTALL)
_LINE_ENDS = re.compile("[\n\r\x85\u2028\u2029]")


class _Rule(NamedTuple):
    """`pattern` is None for the rule DEFAULT. What replaces it: texts, and numbers of groups."""

    pattern: re.Pattern[str] | None
    parts: tuple[str | int, ...] = ()
    fold: Callable[[str], str] = str


class MappingRules:
    """The rules of `ssl.principal.mapping.rules`; `ValueError`, with a sentence, if they are none.

    A pattern is Python's where Java's means the same. One that does not compile here is refused, as
    is a replacement with which no login would succeed in Kafka.
    """

    def __init__(self, text: str) -> None:
        self._rules = tuple(_parsed(text.strip()))

    def user(self, name: str) -> str | None:
        """The user that a certificate's name maps to by the first rule that matches all of it.

        None, if there is no such rule, is nobody at all. So is a name over several lines, where
        Java's patterns and Python's differ, or a name of more than `NAME_CHARS_MAX`.
        """
        if len(name) > NAME_CHARS_MAX:
            return None
        for pattern, parts, fold in self._rules:
            if pattern is None:
                return name
            if not _LINE_ENDS.search(name) and pattern.fullmatch(name):
                return fold(_replaced(pattern, parts, name))
        return None


def _replaced(pattern: re.Pattern[str], parts: tuple[str | int, ...], name: str) -> str:
    """All matches are replaced. After an empty one Java looks on at the next character."""
    texts, copied, at = [], 0, 0
    while at <= len(name) and (match := pattern.search(name, at)):
        texts.append(name[copied : match.start()])
        texts += [each if isinstance(each, str) else match[each] or "" for each in parts]
        copied = match.end()
        at = copied + (match.start() == copied)
    return "".join(texts) + name[copied:]


def _parsed(text: str) -> Iterator[_Rule]:
    at = 0
    while at < len(text):
        found = _RULE.match(text, at)
        if found is None:
            raise ValueError(f"{text[at:]!r} does not begin with a rule: DEFAULT or RULE:…/…/[LU]")
        if found["default"]:
            yield _Rule(None)
        elif found["pattern"] is not None:
            pattern = _compiled(found["pattern"])
            parts = tuple(_parts(found["replacement"], pattern.groups))
            yield _Rule(pattern, parts, _FOLDS[found["fold"]])
        at = found.end()


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of `&&` and `[[`, which mean more to Java
            return re.compile(pattern, re.ASCII)
    except (re.error, Warning) as error:
        raise ValueError(f"the pattern {pattern!r} cannot be used: {error}") from None


def _parts(replacement: str, groups: int) -> Iterator[str | int]:
    """As Java reads it, but a number that no group has is literal, if there are groups at all."""
    at = 0
    for found in _REPLACED.finditer(replacement):
        yield replacement[at : found.start()]
        at = found.end()
        if found["wrong"] or (found["digits"] and found["digits"][0] != "0" and not groups):
            raise ValueError(f"the replacement {replacement!r} names no group: {found[0]!r}")
        if found["literal"]:
            yield found["literal"]
        else:
            yield from _reference(found["digits"], groups)
    yield replacement[at:]


def _reference(digits: str, groups: int) -> Iterator[str | int]:
    """Of `$123`, as many digits as there is a group for; the others are text."""
    if int(digits[0]) > groups:
        yield f"${digits}"
        return
    size = 1
    while size < len(digits) and int(digits[: size + 1]) <= groups:
        size += 1
    yield int(digits[:size])
    yield digits[size:]
