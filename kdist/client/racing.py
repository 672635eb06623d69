"""Asks several candidates in order, without waiting for a slow one before trying the next.

A broker that is down refuses at once. A host that is frozen, or drops packets, stays silent for the
whole connect or request timeout, and waiting for it first would cost that every time. So the next
one is asked as well after `NEXT_AFTER_S`; the first answer wins, and the other requests are
cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple, TypeVar

from kdist.errors import ApiError

K = TypeVar("K")
NEXT_AFTER_S = 2.0  # far longer than a healthy broker takes


class Answered(NamedTuple):
    """The first answer, and who gave it."""

    by: Any
    answer: Any


async def first_answer(
    those: Iterable[K], ask: Callable[[K], Coroutine[Any, Any, Any]]
) -> Answered | dict[K, ApiError]:
    """The first answer; if all fail, each one's error, in the order of `those`."""
    order = list(those)
    left = deque(order)
    asked: dict[asyncio.Task[Any], K] = {}
    failures: dict[K, ApiError] = {}
    try:
        while left or asked:
            if left:
                each = left.popleft()
                asked[asyncio.create_task(ask(each))] = each
            done, _ = await asyncio.wait(
                asked,
                timeout=NEXT_AFTER_S if left else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            answers = []
            for task in done:
                each = asked.pop(task)
                try:
                    answers.append(Answered(each, task.result()))
                except ApiError as error:
                    failures[each] = error
            if answers:
                return answers[0]
    finally:
        for task in asked:
            task.cancel()
    return {each: failures[each] for each in order}
