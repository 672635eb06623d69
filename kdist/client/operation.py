"""Methods that a blocking client and its asyncio twin share: a coroutine function, offered as both.

A client's class has a row for each, `list_topics = Operation(topics.list_topics)`, whose signature,
docstring and errors are the function's, but for its first argument: that is what the client's
`_operate` gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, update_wrapper
from math import isnan
from numbers import Real
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from kdist.client.foreign import understanding
from kdist.errors import WrongType

P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """A client whose methods block until they have a result."""


class Operation(Generic[P, T]):
    """A coroutine function as a method of a client, which waits for it if it is `Blocking`."""

    def __init__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self.function = function

    @overload
    def __get__(self, client: None, kind: type) -> Callable[..., Any]: ...

    @overload
    def __get__(self, client: Blocking, kind: type) -> Callable[P, T]: ...

    @overload
    def __get__(self, client: object, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, client: Any, kind: type) -> Any:
        if client is None:
            return self.function
        return understanding(update_wrapper(partial(client._operate, self.function), self.function))


class Call(Generic[P, T]):
    """A function that waits for nothing, as a method of a client, which calls it on its loop."""

    def __init__(self, function: Callable[Concatenate[Any, P], T]) -> None:
        self.function = function

    @overload
    def __get__(self, client: None, kind: type) -> Callable[..., Any]: ...

    @overload
    def __get__(self, client: object, kind: type) -> Callable[P, T]: ...

    def __get__(self, client: Any, kind: type) -> Any:
        if client is None:
            return self.function
        return understanding(update_wrapper(partial(client._call, self.function), self.function))


def check_timeout(timeout_s: Any, name: str = "timeout_s") -> None:
    """`WrongType` unless it is a number of seconds, or None."""
    is_number = isinstance(timeout_s, Real) and not isinstance(timeout_s, bool)
    if timeout_s is not None and (not is_number or isnan(timeout_s)):
        raise WrongType(f"{name} must be a number of seconds or None, not {timeout_s!r}")
