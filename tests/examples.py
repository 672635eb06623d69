"""How much of a search `make check` does: examples, parameters. `make test` does all of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import hypothesis
import pytest


def examples(count: int, **more: Any) -> hypothesis.settings:
    """`count` examples; in `make check` half, and no more than its profile, `quick`, has."""
    if hypothesis.settings.get_current_profile_name() == "quick":
        count = min((count + 1) // 2, hypothesis.settings.get_profile("quick").max_examples)
    return hypothesis.settings(max_examples=count, **more)


def first_of(
    values: Iterable[Any], count: int = 1, others: pytest.MarkDecorator = pytest.mark.slow
) -> list[Any]:
    """Parameters of a test; `make check` has the first `count` alone, `make test` the others.

    With `others=pytest.mark.stress` those are left to `make stress`.
    """
    return [
        value if number < count else pytest.param(value, marks=others)
        for number, value in enumerate(values)
    ]
