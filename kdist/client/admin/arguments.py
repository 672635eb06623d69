"""Checks what applications pass to an admin client against the operations' annotations (pure).

The annotation of an argument is its documentation, too; so there is no second list of what may be
passed, and no operation that is not checked.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from numbers import Real
from typing import Any, SupportsIndex

from kdist.errors import WrongType
from kdist.model import TopicPartition

_LISTS = (Iterable, Collection, Sequence)
_SIMPLE = {str: "a str", int: "an int", float: "a number", bool: "True or False", None: "None"}

_SECRET = "passwords"  # the argument whose value no error shows


def checked(
    operation: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments after the cluster, iterables as lists; `WrongType` names the first wrong one.

    `TypeError`, as by Python itself, for too many, too few, and unknown ones.
    """
    signature, hints = _declared(operation)
    given = signature.bind(None, *args, **keywords)
    for name, value in given.arguments.items():
        if name != "cluster":
            given.arguments[name] = _checked(name, value, hints[name])
    return given.args[1:], given.kwargs


@cache
def _declared(operation: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    return inspect.signature(operation), typing.get_type_hints(operation)


def _checked(path: str, value: Any, hint: Any) -> Any:
    """The value; `path` is the argument, or a place in it, as in `topics[0].partitions`."""
    for each in _choices(hint):
        if _is_like(value, each):
            return _with_parts(path, value, each)
    shown = f"a {type(value).__name__}" if path.startswith(_SECRET) else repr(value)
    raise WrongType(f"{path} must be {_noun(hint)}, not {shown}")


def _choices(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if is_union else (hint,)


def _is_like(value: Any, hint: Any) -> bool:
    """Whether a value is of the kind; what is in it may still be wrong."""
    kind = typing.get_origin(hint) or hint
    if kind is int:
        return isinstance(value, SupportsIndex) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    if kind is TopicPartition:
        return isinstance(value, tuple) and len(value) == 2
    if kind in _LISTS:  # text and a row can be iterated, but are one thing
        is_one = isinstance(value, str | bytes) or hasattr(value, "_fields")
        # Of a dict the keys are meant, unless an item may say more: {"topic": partitions}.
        says_more = isinstance(value, Mapping) and len(_choices(typing.get_args(hint)[0])) > 1
        return isinstance(value, Iterable) and not is_one and not says_more
    return isinstance(value, kind)


def _with_parts(path: str, value: Any, hint: Any) -> Any:
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if kind in _LISTS:
        found = [_checked(f"{path}[{at}]", each, parts[0]) for at, each in enumerate(value)]
        return tuple(found) if isinstance(value, tuple) else found
    if kind is Mapping:
        return {
            _checked(f"a key of {path}", key, parts[0]): _checked(
                f"{path}[{key!r}]", each, parts[1]
            )
            for key, each in value.items()
        }
    if hasattr(hint, "_fields"):
        hints = typing.get_type_hints(hint)
        fields = zip(hint._fields, value, strict=True)
        return hint(*(_checked(f"{path}.{name}", each, hints[name]) for name, each in fields))
    return value


def _noun(hint: Any) -> str:
    kind, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
    if len(_choices(hint)) > 1:
        *most, last = map(_noun, _choices(hint))
        return f"{', '.join(most)} or {last}"
    if kind in _LISTS:
        return f"a list, each {_noun(parts[0])}"
    if kind is Mapping:
        return f"a dict, each key {_noun(parts[0])} and each value {_noun(parts[1])}"
    return _SIMPLE.get(None if kind is types.NoneType else kind) or f"a {kind.__name__}"
