"""How many examples a property is searched with, where it is not the profile's own number."""

from __future__ import annotations

from typing import Any

import hypothesis


def examples(count: int, **more: Any) -> hypothesis.settings:
    """`count` examples; in `make check` no more than its profile, `quick`, has."""
    if hypothesis.settings.get_current_profile_name() == "quick":
        count = min(count, hypothesis.settings.get_profile("quick").max_examples)
    return hypothesis.settings(max_examples=count, **more)
