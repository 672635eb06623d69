"""Chance from the operating system: what production passes where a test passes a seed."""

from __future__ import annotations

import random


def system_chance() -> random.Random:
    """A generator that no one else has the seed of. Not for secrets."""
    return random.Random()
