"""JSON that people write: a name given twice in an object is refused (pure)."""

from __future__ import annotations

import json
from typing import Any


class NameTwice(ValueError):
    """An object gives a name twice, of which JSON's readers take the last without a word."""


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; `NameTwice`, or another `ValueError` if it is no JSON."""
    return json.loads(text, object_pairs_hook=_once_each)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise NameTwice(f"{twice!r} is given twice")
    return found
