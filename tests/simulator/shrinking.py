"""Makes a history that violates a promise smaller: fewer faults, fewer clients, less time.

A run with a part left out may violate something else, or nothing, for every event shifts others.
So what counts is whether the smaller one still breaks the promise of the same name ("S3"). Faults
are left out by delta debugging: halves first, then ever smaller parts, until each fault is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from tests.simulator.forgetting import HOST as FORGETTER
from tests.simulator.operating import HOST as OPERATOR
from tests.simulator.playing import run
from tests.simulator.probing import HOST as PROBER
from tests.simulator.reading import CHANGES
from tests.simulator.record import Outcome
from tests.simulator.script import ALL, Script

T = TypeVar("T")

SECONDS = 120.0
CLIENTS = ("p0", "p1", "p2", "t0", "t1", OPERATOR, PROBER, FORGETTER, CHANGES)


class Shrunk(NamedTuple):
    """The smallest history that was found, and what of the seed it is."""

    outcome: Outcome
    script: Script


def shrink(found: Outcome, bug: str = "", seconds: float = SECONDS) -> Shrunk:
    """The smallest that breaks the same promise as this one, as far as the time allows."""
    smallest, end_s = Shrunk(found, ALL), time.monotonic() + seconds

    def is_found(script: Script) -> bool:
        nonlocal smallest
        if time.monotonic() > end_s:
            return False
        outcome = run(found.seed, bug, script)
        if promise(outcome) != promise(found):
            return False
        smallest = Shrunk(outcome, script)
        return True

    faults = smaller(found.faults, lambda kept: is_found(Script(tuple(kept))))
    kept = Script(tuple(faults))
    smaller(
        CLIENTS,
        lambda busy: is_found(kept._replace(idle=tuple(e for e in CLIENTS if e not in busy))),
    )
    is_found(smallest.script._replace(faults=kept.faults, ends_early=True))
    return smallest


def promise(outcome: Outcome) -> str:
    """The name of what a history violates; "" if it keeps all."""
    return outcome.violation.partition(":")[0]


def smaller(items: Sequence[T], is_enough: Callable[[list[T]], bool]) -> list[T]:
    """As few of the items as are enough: none of them can be left out alone.

    Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (`ddmin`).
    """
    kept, parts = list(items), 2
    if is_enough([]):
        return []
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        for begin in range(0, len(kept), size):
            rest = kept[:begin] + kept[begin + size :]
            if is_enough(rest):
                kept, parts = rest, max(2, parts - 1)
                break
        else:
            if parts >= len(kept):
                break
            parts = min(len(kept), 2 * parts)
    return kept
