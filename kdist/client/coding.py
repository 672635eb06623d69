"""Encoders and decoders, which turn an application's keys and values into bytes, and back (pure).

Either is any callable of one argument, such as `json.loads`. One that needs a second is also told
where the data belongs, as a schema registry's would be. Null is neither encoded nor decoded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from kdist.errors import UserError
from kdist.records.record import Headers

Role = Literal["key", "value"]


class CodingContext(NamedTuple):
    """What a key or value belongs to: its record's topic, its role there, the record's headers."""

    topic: str
    role: Role
    headers: Headers


Encoder = Callable[[Any], bytes | None] | Callable[[Any, CodingContext], bytes | None]
Decoder = Callable[[bytes], Any] | Callable[[bytes, CodingContext], Any]


class WithContext(NamedTuple):
    """An encoder or decoder that needs a `CodingContext`."""

    call: Callable[[Any, CodingContext], Any]


Coder = Callable[[Any], Any] | WithContext
"""An encoder or decoder that was checked."""


def checked_coder(name: str, coder: Encoder | Decoder | None) -> Coder | None:
    """The encoder or decoder; `UserError` unless it is callable, or None."""
    if coder is None or isinstance(coder, WithContext):
        return coder
    if not callable(coder):
        raise UserError(f"{name} is {coder!r}, and must be a callable")
    given: Any = coder
    return WithContext(given) if _needed_count(given) > 1 else given


def _needed_count(function: Callable[..., Any]) -> int:
    """How many positional arguments it cannot do without; 1 if it does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # as of some built-in functions
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in positional and each.default is each.empty for each in parameters)


def coded(
    coder: Coder, items: Iterable[Any], topic: str, role: Role, headers: Iterable[Headers]
) -> Iterable[Any]:
    """Each of the items encoded or decoded, lazily; `headers` are their records'."""
    if isinstance(coder, WithContext):
        code = coder.call
        pairs = zip(items, headers, strict=False)
        return (
            None if item is None else code(item, CodingContext(topic, role, own))
            for item, own in pairs
        )
    return (None if item is None else coder(item) for item in items)
