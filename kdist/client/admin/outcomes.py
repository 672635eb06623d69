"""Operations on several items: their arguments, results and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kdist.client.cluster import api_error
from kdist.errors import ApiError, Error

K = TypeVar("K")
V = TypeVar("V")


class SomeFailed(ApiError):
    """Some items failed: `failed` has their errors by item, `done` the results of the others.

    `error` is that of the first in `failed`; the text has its sentence, and names the others.
    """

    def __init__(self, failed: Mapping[Any, ApiError], done: Mapping[Any, Any]) -> None:
        first, *others = failed
        detail = failed[first].detail
        if others:
            is_same = len({each.error for each in failed.values()}) == 1
            verb = "and so" if is_same else "other errors"
            detail = f"{detail.rstrip('.')} ({verb} for {', '.join(map(str, others))})"
        super().__init__(failed[first].error, detail)
        self.failed = dict(failed)
        self.done = dict(done)


def listed(items: Iterable[V]) -> list[V]:
    """The items without duplicates."""
    return list(dict.fromkeys(items))


def fault_of(code: int, about: str, message: str | None = None) -> ApiError | None:
    """The error for a code, as `raise_for` would raise it; None for 0.

    `about` is left out if the broker's own message already mentions it.
    """
    if not code:
        return None
    return api_error(Error.of(code), "" if message and about in message else about, message)


async def each_of(items: Sequence[K], do: Callable[[K], Awaitable[V]]) -> dict[K, V]:
    """What `do` returns for each item, all at once; `SomeFailed` if it failed for any."""

    async def one(item: K) -> V | ApiError:
        try:
            return await do(item)
        except ApiError as error:
            return error

    return settled(dict(zip(items, await asyncio.gather(*map(one, items)), strict=True)))


def settled(outcomes: Mapping[K, V | ApiError]) -> dict[K, V]:
    """The result of each item; `SomeFailed` if any of them failed."""
    failed: dict[K, ApiError] = {}
    done: dict[K, V] = {}
    for item, outcome in outcomes.items():
        if isinstance(outcome, ApiError):
            failed[item] = outcome
        else:
            done[item] = outcome
    if failed:
        raise SomeFailed(failed, done)
    return done
