"""Typed fields of a JSON znode; anything unexpected raises `CorruptZnode` with the reason.

Unknown keys are ignored: other brokers, older and newer, add their own. A number has to fit what
Kafka reads it as, and what requests carry it in: 32 bits, or 64 where it is a time or an offset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from kdist.zk.errors import CorruptZnode

Value = TypeVar("Value", int, str, list[Any], dict[str, Any])


# Created once: `json.dumps` with these arguments would create an encoder per call.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def to_json(fields: Mapping[str, object]) -> bytes:
    """As Kafka's serializer writes it: no spaces, UTF-8 unescaped, in the given order."""
    return _encode(fields).encode()


def to_int32(path: str, data: bytes) -> int:
    """A znode that is nothing but a decimal number."""
    return _to_integer(path, data, 32)


def to_int64(path: str, data: bytes) -> int:
    """As `to_int32`, of a greater range."""
    return _to_integer(path, data, 64)


def _to_integer(path: str, data: bytes, bits: int) -> int:
    try:
        return parse_integer(data.decode("ascii"), bits)
    except ValueError:
        raise CorruptZnode(path, f"{data[:40]!r} is not a number of {bits} bits") from None


def parse_integer(text: str, bits: int) -> int:
    """ASCII digits with an optional minus sign; `ValueError` for all else that `int` accepts.

    Also `ValueError` if it does not fit into so many bits.
    """
    if not text.removeprefix("-").isdecimal() or not text.isascii():
        raise ValueError(f"{text[:40]!r} is not a number")
    number = int(text)
    if not fits(number, bits):
        raise ValueError(f"{text[:40]!r} does not fit into {bits} bits")
    return number


def fits(number: int, bits: int = 32) -> bool:
    """Whether a signed integer of so many bits can have this value."""
    return -(1 << bits - 1) <= number < 1 << bits - 1


class Fields:
    """A JSON object of a znode."""

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        try:
            parsed = json.loads(data)
        except (ValueError, RecursionError):  # bytes that are not UTF-8 are a ValueError too
            raise CorruptZnode(path, f"{data[:40]!r} is not JSON") from None
        if not isinstance(parsed, dict):
            self.fail("is not a JSON object")
        self._fields: dict[str, Any] = parsed

    def fail(self, reason: str) -> NoReturn:
        """Raise `CorruptZnode` for this znode."""
        raise CorruptZnode(self._path, reason)

    def version(self, last: int) -> int:
        """The layout's version; a newer one than `last` is read as `last`, as Kafka does."""
        version = self.required("version", int)
        if version < 1:
            self.fail(f"version {version} is older than 1")
        return min(version, last)

    def required(self, key: str, kind: type[Value]) -> Value:
        if key not in self._fields:
            self.fail(f"there is no {key!r}")
        return self._of_kind(key, self._fields[key], kind)

    def optional(self, key: str, kind: type[Value]) -> Value | None:
        """None if the key is missing or null."""
        value = self._fields.get(key)
        return None if value is None else self._of_kind(key, value, kind)

    def time_ms(self, key: str = "timestamp") -> int:
        """A number that Kafka writes as a string; -1 if it is missing."""
        value = self._fields.get(key, -1)
        try:
            return parse_integer(str(value), 64)
        except ValueError:
            self.fail(f"{key!r} is {value!r} and not a time in ms")

    def text_integer(self, key: str) -> int:
        """As `time_ms`, and required."""
        if key not in self._fields:
            self.fail(f"there is no {key!r}")
        return self.time_ms(key)

    def integers(self, key: str) -> tuple[int, ...]:
        return self._integers(key, self.required(key, list))

    def optional_integers(self, key: str) -> tuple[int, ...]:
        """Empty if the key is missing or null."""
        return self._integers(key, self.optional(key, list) or [])

    def texts(self, key: str) -> dict[str, str]:
        """An object whose values are strings; empty if it is missing."""
        found = self.optional(key, dict) or {}
        return {name: self._of_kind(f"{key}.{name}", text, str) for name, text in found.items()}

    def integers_by_name(self, key: str) -> dict[str, frozenset[int]]:
        """An object whose values are lists of distinct numbers; empty if it is missing."""
        found = self.optional(key, dict) or {}
        return {
            name: frozenset(self._integers(f"{key}.{name}", ids)) for name, ids in found.items()
        }

    def integers_by_partition(self, key: str) -> dict[int, tuple[int, ...]]:
        """An object from partition numbers to lists of broker ids; empty if it is missing."""
        found: dict[int, tuple[int, ...]] = {}
        for name, ids in (self.optional(key, dict) or {}).items():
            try:
                partition = parse_integer(name, 32)
            except ValueError:
                partition = -1
            if partition < 0:
                self.fail(f"{key!r} has {name[:40]!r} for a partition")
            found[partition] = self._integers(f"{key}.{name}", ids)
        return dict(sorted(found.items()))

    def _integers(self, key: str, found: object) -> tuple[int, ...]:
        items: Sequence[object] = self._of_kind(key, found, list)
        return tuple(self._of_kind(key, item, int) for item in items)

    def _of_kind(self, key: str, value: object, kind: type[Value]) -> Value:
        if not isinstance(value, kind) or isinstance(value, bool):
            self.fail(f"{key!r} is {value!r} and not {_NAMES[kind]}")
        if isinstance(value, int) and not fits(value):
            self.fail(f"{key!r} is {value} and not a number of 32 bits")
        return value


_NAMES: dict[type, str] = {int: "a number", str: "a string", list: "a list", dict: "an object"}
