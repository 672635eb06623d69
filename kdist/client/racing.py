"""Asking one after the other, and the next beside one that does not answer soon.

Who is down says so at once; a host that is frozen, or drops what comes, says nothing for as long as
a connection or an answer may take. To wait for it before the next is asked would cost that each
time. Whoever answers first is taken, and the others are waited for no more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple, TypeVar

from kdist.errors import ApiError

K = TypeVar("K")
NEXT_AFTER_S = 2.0  # who is well has answered long before


class Answered(NamedTuple):
    """Who answered, and what."""

    by: Any
    answer: Any


async def first_answer(
    those: Iterable[K], ask: Callable[[K], Coroutine[Any, Any, Any]]
) -> Answered | dict[K, ApiError]:
    """The first answer there is; where nobody gives one, what each failed with, in their order."""
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
