"""What became of one test of one suite, and how many results are shown.

A state is one of four: `passed`; `failed`; `skipped`, where the suite or the machine says why; and
`later`, where later.py names the feature that the test needs and the broker does not have yet. A
test that is listed there and passes counts as passed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

PASSED, FAILED, SKIPPED, LATER = STATES = ("passed", "failed", "skipped", "later")
REASON_CHARACTERS = 240


class SuiteMissingError(Exception):
    """A suite cannot be fetched or built on this machine. Its text is one sentence to act on."""


class Outcome(NamedTuple):
    """One test's result. `reason` is usually empty for a test that passed."""

    suite: str
    test: str
    state: str
    seconds: float
    reason: str = ""

    def line(self) -> str:
        """One line for a person who watches the run."""
        reason = " ".join(self.reason.split())[:REASON_CHARACTERS]
        head = f"{self.state:7}  {self.seconds:6.1f} s  {self.suite}: {self.test}"
        return f"{head}  ({reason})" if reason else head


def summary(outcomes: Sequence[Outcome]) -> str:
    """A row per suite with a column per state."""
    suites = {outcome.suite: Counter[str]() for outcome in outcomes}
    for outcome in outcomes:
        suites[outcome.suite][outcome.state] += 1
    width = max(map(len, suites), default=0)
    rows = ["  ".join([" " * width, *(f"{state:>8}" for state in STATES)])]
    rows += [
        "  ".join([f"{suite:{width}}", *(f"{counts[state]:8}" for state in STATES)])
        for suite, counts in suites.items()
    ]
    return "\n".join(rows)


def as_json(outcomes: Sequence[Outcome]) -> str:
    """A list of objects with the fields of `Outcome`."""
    return json.dumps([outcome._asdict() for outcome in outcomes], indent=1)
