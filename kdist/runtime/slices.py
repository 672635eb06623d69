"""Long work done in slices of some milliseconds, so that the loop gets to all else in between.

The work is a generator that yields about how many microseconds it has taken since it last did: that
is counted and not measured, so that a simulation cuts it at the same places each time. Whatever may
happen between two slices is the work's to think of.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

SLICE_US = 3_000  # on a machine half as fast it is 6 ms

Steps = Iterator[int]
T = TypeVar("T")


def parted(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut into lists of at most `size`; one empty list if there is nothing."""
    rest = iter(items)
    part = list(islice(rest, size))
    yield part
    while part := list(islice(rest, size)):
        yield part


def take_slice(steps: Steps) -> bool:
    """Do some of the work; returns whether there may be more."""
    taken_us = 0
    for step_us in steps:
        taken_us += step_us
        if taken_us >= SLICE_US:
            return True
    return False


async def in_slices(steps: Steps) -> None:
    """Do all of the work, with a turn of the loop after each slice."""
    while take_slice(steps):
        await asyncio.sleep(0)


class _Job(NamedTuple):
    steps: Steps
    done: Callable[[], None]


class Slices:
    """An owner's long works: in each tick of the loop one slice of one of them, in turn."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """`call_soon` runs a callback in the loop's next tick."""
        self._call_soon = call_soon
        self._jobs: deque[_Job] = deque()
        self._is_busy = False  # in a slice, or the next one is scheduled

    def add(self, steps: Steps, done: Callable[[], None] = lambda: None) -> None:
        """Do the work, its first slice at once if nothing else is under way; then call `done`."""
        self._jobs.append(_Job(steps, done))
        if not self._is_busy:
            self._go_on()

    def finish(self) -> None:
        """Do all that is left in one go."""
        while self._jobs:
            job = self._jobs.popleft()
            for _ in job.steps:
                pass
            job.done()

    def _go_on(self) -> None:
        self._is_busy = True
        try:
            if self._jobs:  # else finished meanwhile
                job = self._jobs.popleft()
                if take_slice(job.steps):
                    self._jobs.append(job)
                else:
                    job.done()
        finally:  # a work that fails takes no other along
            self._is_busy = bool(self._jobs)
            if self._is_busy:
                self._call_soon(self._go_on)
