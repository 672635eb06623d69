"""Random messages made from their declarations, and the list of all messages at all versions.

`sample(case, rng)` gives a message that its version can carry whole, so that a round trip gives
back an equal one. Under hypothesis `rng` comes from `st.randoms()`, so that failures shrink; in
the fuzz target it is a seeded `random.Random`. With `is_tame` it keeps to what kio can hold: error
codes that exist, times that fit a datetime, no tags that only we would know.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kdist.protocol import consumer_protocol, group_records
from kdist.protocol.alter_partition import ELIGIBLE_REPLICAS_TAG
from kdist.protocol.compiler import codec_for
from kdist.protocol.schema import Shape, WireField, flexible_since, wire_fields
from kdist.protocol.versions import TABLE

INTEGER_BITS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
LENGTHS = (0, 1, 3, 8, 126, 127, 200)  # a compact length takes two bytes from 127 on
LETTERS = "abcXYZ019.-_ \u00e9\u4e16\U0001f4dc\0"


class Case(NamedTuple):
    """One message class at one version."""

    cls: type[Any]
    version: int

    def __str__(self) -> str:
        return f"{self.cls.__name__}-v{self.version}"

    @property
    def is_flexible(self) -> bool:
        return self.version >= flexible_since(self.cls)


def _all_cases() -> list[Case]:
    ranges = [
        *((cls, api.oldest, api.newest) for api in TABLE for cls in (api.request, api.response)),
        (consumer_protocol.ConsumerProtocolSubscription, 0, 3),
        (consumer_protocol.ConsumerProtocolAssignment, 0, 3),
        (group_records.OffsetCommitKey, 0, 1),
        (group_records.OffsetCommitValue, 0, 4),
        (group_records.GroupMetadataKey, 2, 2),
        (group_records.GroupMetadataValue, 0, 4),
    ]
    return [Case(cls, version) for cls, first, last in ranges for version in range(first, last + 1)]


ALL_CASES = _all_cases()


def every_version_of(cases: list[Case]) -> Callable[[Callable[[Case], None]], Callable[..., None]]:
    """Parametrises a test by message: it is called with each version's case, which a failure names.

    A test for each message and version would be thousands, and collecting them take longer.
    """
    by_message: dict[str, list[Case]] = {}
    for case in cases:
        by_message.setdefault(case.cls.__name__, []).append(case)

    def decorate(test: Callable[[Case], None]) -> Callable[..., None]:
        @pytest.mark.parametrize("message", by_message)
        def test_each(message: str) -> None:
            for case in by_message[message]:
                try:
                    test(case)
                except BaseException as error:
                    error.add_note(f"of {case}")
                    raise

        return test_each

    return decorate


def encoded(case: Case, message: Any) -> bytes:
    """The message as our codec writes it."""
    out = bytearray()
    codec_for(*case).encode(message, out)
    return bytes(out)


def sample(case: Case, rng: random.Random, is_tame: bool = False) -> Any:
    """An instance of the case's message class."""
    return _Sampler(case.version, case.is_flexible, is_tame, rng).struct(case.cls)


def _is_kdists(field: WireField) -> bool:
    return field.tag is not None and field.tag >= ELIGIBLE_REPLICAS_TAG


class _Sampler(NamedTuple):
    version: int
    is_flexible: bool
    is_tame: bool
    rng: random.Random

    def struct(self, cls: type[Any]) -> Any:
        fields = {field.name: self.field(field) for field in wire_fields(cls)}
        if self.is_flexible and not self.is_tame and self.one_in(4):
            tag = self.rng.randint(70, 2**32 - 1)  # but for the one above 69 that is known
            fields["unknown_tags"] = {tag + (tag == ELIGIBLE_REPLICAS_TAG): self.raw()}
        return cls(**fields)

    def field(self, field: WireField) -> Any:
        is_in = field.is_in(self.version) and not (self.is_tame and _is_kdists(field))
        if not is_in or (field.tag is not None and self.one_in(2)):
            return [] if field.default == [] else field.default
        if field.is_nullable_in(self.version) and self.one_in(3):
            return None
        if self.is_tame and field.name.endswith("error_code"):
            return self.rng.randint(0, 50)
        return self.value(field.shape)

    def value(self, shape: Shape) -> Any:
        if shape.item is not None:
            return [self.value(shape.item) for _ in range(self.rng.choice((0, 1, 1, 2, 3)))]
        if shape.struct is not None:
            return self.struct(shape.struct)
        if shape.kind in INTEGER_BITS:
            return self.integer(shape.kind)
        if shape.kind == "bool":
            return self.one_in(2)
        if shape.kind == "float64":
            return self.rng.random()
        if shape.kind == "uuid":
            return uuid.UUID(int=self.rng.getrandbits(128))
        return self.text() if shape.kind == "string" else self.raw()

    def integer(self, kind: str) -> int:
        if kind == "int64" and self.is_tame:
            return self.rng.randint(0, 2**40)
        bits = INTEGER_BITS[kind]
        low = 0 if kind.startswith("u") else -(2 ** (bits - 1))
        high = low + 2**bits - 1
        return self.rng.choice((0, 1, low, high, self.rng.randint(low, high)))

    def text(self) -> str:
        return "".join(self.rng.choice(LETTERS) for _ in range(self.length()))

    def raw(self) -> bytes:
        return bytes([self.rng.randrange(256)]) * self.length()

    def length(self) -> int:
        return self.rng.choice(LENGTHS if self.one_in(8) else LENGTHS[:4])

    def one_in(self, number: int) -> bool:
        return self.rng.randrange(number) == 0
